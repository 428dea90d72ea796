"""`prep sim calibrate` and `prep sim check`: the simulator against the live engine on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli import terminal
from app.cli.sim.options import Json
from common.text import counted, duration

CpuTime = Annotated[
    bool,
    typer.Option(
        "--cpu-time",
        help="Count processor time, which other programs hardly change; needs OMP_NUM_THREADS=1.",
    ),
]


def calibrate(
    models: Annotated[list[str] | None, typer.Argument(help="By default shop and dummy-386m.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of every kind of step.")] = 5,
    cpu_time: CpuTime = False,
    json: Json = False,
) -> None:
    """Measure the live engine on this CPU, so that --gpu cpu gives real times.

    Times steps of known kinds and fits the cost model's rates to them. The result is stored in the user's cache
    folder (~/.cache/prep/simulator.json), one entry per model.

    \b
    Examples:
      prep sim calibrate
      OMP_NUM_THREADS=1 prep sim calibrate shop --cpu-time
    """
    from engine.sim.calibration import save_calibration

    with terminal.loading("the engine"):
        from app.bench.calibrate import calibrate as measure
    found = []
    with terminal.status() as tell:
        for model in models or ["shop", "dummy-386m"]:
            found.append(measure(tell, model, rounds=rounds, cpu_time=cpu_time))
            path = save_calibration(found[-1])
    if json:
        terminal.print_json({"file": str(path), "calibrations": [asdict(entry) for entry in found]})
        return
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
    terminal.out().print(f"[dim]saved in {terminal.literal(path)}[/]", soft_wrap=True)
    terminal.next_command("prep sim check", "the same workload live and simulated")


def check(
    model: Annotated[str, typer.Argument(help="shop, shop-draft or dummy-386m.")] = "shop",
    num_requests: Annotated[int, typer.Option(min=5)] = 60,
    load: Annotated[float, typer.Option(help="Arrival rate as a share of the engine's capacity.")] = 0.6,
    rounds: Annotated[int, typer.Option(min=1, help="Live runs, each after a calibration run.")] = 3,
    saved: Annotated[
        bool, typer.Option("--saved", help="Use the result of prep sim calibrate instead of calibrating now.")
    ] = False,
    cpu_time: CpuTime = False,
    json: Json = False,
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
    from engine.sim.calibration import load_calibrations

    if not 0 < load <= 2:
        raise terminal.Problem(
            f"--load is a share of the engine's capacity, up to 2; got {load}", next_step="--load 0.6"
        )
    known = load_calibrations().get(model) if saved else None
    if saved and known is None:
        raise terminal.Problem(
            f"nothing was measured for {model} yet", next_step=f"prep sim calibrate {model}"
        )
    with terminal.loading("the engine"):
        from app.bench.sim_check import check as compare
    with terminal.status() as tell:
        report = compare(
            tell, model, num_requests=num_requests, load=load, rounds=rounds, cpu_time=cpu_time, saved=known
        )
    if json:
        figures = [
            {**asdict(figure), "error": figure.error, "is_within": figure.is_within}
            for figure in report.figures
        ]
        terminal.print_json(
            {**asdict(report), "figures": figures, "passed": report.passed, "is_noisy": report.is_noisy}
        )
    else:
        table = terminal.table("", "live", "simulated", "error", "allowed", "live runs differ by", "")
        for figure in report.figures:
            allowed = f"{figure.bar:.0%}" if figure.bar else ""
            verdict = terminal.mark(figure.is_within) if figure.bar else ""
            table.add_row(
                figure.name,
                duration(figure.live),
                duration(figure.simulated),
                f"{figure.error:+.1%}",
                allowed,
                f"{figure.spread:.0%}",
                verdict,
            )
        terminal.show(
            f"{model}: {num_requests} requests at {report.rate:.2f} per second, {counted(rounds, 'round')}",
            table,
        )
    if not report.passed:
        if report.is_noisy:
            terminal.err().print(
                f"[yellow]inconclusive, the machine was busy: rounds differ by {100 * report.spread:.0f} %. "
                f"Close other programs, use --rounds {2 * rounds}, or count processor time (--cpu-time)[/]",
                soft_wrap=True,
            )
        raise typer.Exit(terminal.INCONCLUSIVE if report.is_noisy else terminal.CHECKS_FAILED)
    if not json:
        terminal.next_command(
            f"prep sim run --gpu cpu --model {model} --prompt 100 --output 30", "at any load"
        )
