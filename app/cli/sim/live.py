"""`prep sim calibrate` and `prep sim check`: the simulator against the live engine on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from common.text import counted, duration
from engine.sim.calibration import load_calibrations, save_calibration

CpuTime = Annotated[
    bool,
    option(
        "Count processor time, which other programs hardly change; needs OMP_NUM_THREADS=1.", "--cpu-time"
    ),
]


def calibrate(
    models: Annotated[list[str] | None, argument("By default shop and dummy-386m.")] = None,
    rounds: Annotated[int, option("Repetitions of every kind of step.", min=1)] = 5,
    cpu_time: CpuTime = False,
    json: JsonOption = False,
) -> None:
    """Measure the live engine on this CPU, so that --gpu cpu gives real times.

    Times steps of known kinds and fits the cost model's rates to them. The result is stored in the user's cache
    folder (~/.cache/prep/simulator.json), one entry per model.

    \b
    Examples:
      prep sim calibrate
      OMP_NUM_THREADS=1 prep sim calibrate shop --cpu-time
    """
    with terminal.loading("the engine"):
        from app.bench.calibrate import calibrate as measure
    found = []
    with terminal.status() as tell:
        for model in models or ["shop", "dummy-386m"]:
            found.append(measure(tell, model, rounds=rounds, cpu_time=cpu_time))
            path = save_calibration(found[-1])
    if json:
        return terminal.print_json({"file": str(path), "calibrations": [asdict(entry) for entry in found]})
    table = terminal.table("", *(entry.model for entry in found))
    rows = {
        "matrix products, GFLOP/s": [entry.rates.flops / 1e9 for entry in found],
        "weights read, GB/s": [entry.rates.bytes_per_s / 1e9 for entry in found],
        "KV read in decodes, GB/s": [entry.rates.attention_bytes_per_s / 1e9 for entry in found],
        "attention in prompts, GFLOP/s": [entry.rates.attention_flops / 1e9 for entry in found],
        "per step, µs": [1e6 * entry.rates.step_overhead for entry in found],
        "per row, µs": [1e6 * entry.rates.row_overhead for entry in found],
        "per layer of a step with a prompt, µs": [1e6 * entry.rates.eager_overhead for entry in found],
        "fit: median error, %": [100 * entry.fit_error for entry in found],
    }
    for words, values in rows.items():
        table.add_row(words, *("not noticed" if value > 1e15 else f"{value:,.1f}" for value in values))
    terminal.show(f"This CPU, {found[0].threads} threads", table)
    terminal.say(f"[dim]saved in {terminal.literal(path)}[/]", whole=True)
    terminal.next_command("prep sim check", "the same workload live and simulated")


def check(
    model: Annotated[str, argument("shop, shop-draft or dummy-386m.")] = "shop",
    num_requests: Annotated[int, option(min=5)] = 60,
    load: Annotated[float, option("Arrival rate as a share of the engine's capacity.")] = 0.6,
    rounds: Annotated[int, option("Live runs, each after a calibration run.", min=1)] = 3,
    saved: Annotated[
        bool, option("Use the result of prep sim calibrate instead of calibrating now.", "--saved")
    ] = False,
    cpu_time: CpuTime = False,
    json: JsonOption = False,
) -> None:
    """Compare the simulator with the live engine on the same requests.

    Exit code 0: mean step within 15 %, TTFT and ITL medians within 20 %. 1: not. 4: not, and the live runs differ
    too much among themselves for a verdict.

    \b
    Examples:
      prep sim check shop
      prep sim check dummy-386m --num-requests 20 --rounds 2
      OMP_NUM_THREADS=1 prep sim check shop --cpu-time
    """
    if not 0 < load <= 2:
        raise terminal.Problem(
            f"--load is a share of the engine's capacity, up to 2; got {load}", "--load 0.6"
        )
    known = load_calibrations().get(model) if saved else None
    if saved and known is None:
        raise terminal.Problem(f"nothing was measured for {model} yet", f"prep sim calibrate {model}")
    with terminal.loading("the engine"):
        from app.bench.sim_check import check as compare
    with terminal.status() as tell:
        report = compare(
            tell, model, num_requests=num_requests, load=load, rounds=rounds, cpu_time=cpu_time, saved=known
        )
    if json:
        figures = [
            {**asdict(figure), **terminal.pick(figure, "error is_within")} for figure in report.figures
        ]
        terminal.print_json(
            {**asdict(report), "figures": figures, **terminal.pick(report, "passed is_noisy")}
        )
    else:
        table = terminal.table("", "live", "simulated", "error", "allowed", "live runs differ by", "")
        for figure in report.figures:
            times = (duration(figure.live), duration(figure.simulated), f"{figure.error:+.1%}")
            allowed = f"{figure.bar:.0%}" if figure.bar else ""
            verdict = terminal.mark(figure.is_within) if figure.bar else ""
            table.add_row(figure.name, *times, allowed, f"{figure.spread:.0%}", verdict)
        work = f"{num_requests} requests at {report.rate:.2f} per second, {counted(rounds, 'round')}"
        terminal.show(f"{model}: {work}", table)
    if not report.passed:
        if report.is_noisy:
            terminal.note(
                f"[yellow]inconclusive, the machine was busy: rounds differ by {100 * report.spread:.0f} %. "
                f"Close other programs, use --rounds {2 * rounds}, or count processor time (--cpu-time)[/]"
            )
        raise typer.Exit(terminal.INCONCLUSIVE if report.is_noisy else terminal.CHECKS_FAILED)
    if not json:
        terminal.next_command(
            f"prep sim run --gpu cpu --model {model} --prompt 100 --output 30", "at any load"
        )
