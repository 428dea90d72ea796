"""`prep sim calibrate` and `prep sim check`: the simulator against the live engine on this machine."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from engine.sim.calibration import Calibration, calibration_file, load_calibrations, save_calibration
from engine.sim.precision import get_precision
from prep_common.text import counted, duration

if TYPE_CHECKING:
    from app.bench.sim_check import CheckReport

CpuTime = Annotated[
    bool,
    option(
        "Count processor time, which other programs hardly change; needs OMP_NUM_THREADS=1.", "--cpu-time"
    ),
]


def calibrate(
    models: Annotated[
        list[str] | None, argument("shop (default), shop-draft, dummy-103m or dummy-386m.")
    ] = None,
    dtype: Annotated[
        list[str] | None, option("fp32, bf16, int8 or int4; repeatable. By default fp32 and bf16.")
    ] = None,
    rounds: Annotated[int, option("Repetitions of every kind of step.", min=1)] = 5,
    cpu_time: CpuTime = False,
    json: JsonOption = False,
) -> None:
    """Measure the live engine on this CPU, so that --gpu cpu gives real times.

    Times steps of known kinds and fits the cost model's rates to them. The result is stored in the user's cache
    folder (~/.cache/prep/simulator.json), one entry per model and dtype. shop takes about 15 s per dtype on 2 cores.

    \b
    Examples:
      prep sim calibrate
      prep sim calibrate shop dummy-386m --dtype bf16
      OMP_NUM_THREADS=1 prep sim calibrate shop --cpu-time
    """
    with terminal.loading("the engine"):
        from app.bench.calibrate import calibrate as measure
        from app.bench.calibrate import engine_dtype, require_measured
    dtypes = dtype or ["float32", "bfloat16"]
    for name in dtypes:
        engine_dtype(name)
    models = models or ["shop"]
    for model in models:
        require_measured(model)
    _require_place()
    calibrations = []
    with terminal.status(lines_in_pipe=True) as tell:
        for model in models:
            for name in dtypes:
                calibrations.append(measure(tell, model, name, rounds=rounds, cpu_time=cpu_time))
                _save(calibrations[-1])
    path = calibration_file()
    if json:
        return terminal.print_json(
            {"file": str(path), "calibrations": [asdict(entry) for entry in calibrations]}
        )
    table = terminal.table("", *(f"{entry.model} {entry.dtype}" for entry in calibrations))
    for words, values in _rows(calibrations).items():
        table.add_row(words, *("not noticed" if value > 1e15 else f"{value:,.1f}" for value in values))
    terminal.show(f"This CPU, {calibrations[0].threads} threads", table)
    terminal.say(f"[dim]calibrations: {terminal.literal(path)}[/]", whole=True)
    terminal.next_command("prep sim check", "twelve workloads live and simulated")


def _require_place() -> None:
    """Find out before the measurement whether its result can be stored."""
    folder = calibration_file().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK) else "not writable"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        variable = "PREP_HOME" if os.environ.get("PREP_HOME") else "PREP_CACHE"
        raise terminal.Problem(
            f"cannot store a calibration in {folder}: {why}",
            f"set {variable} to a folder that you may write to",
            code=terminal.ENVIRONMENT,
        )


def _save(calibration: Calibration) -> None:
    """Store a calibration, but none of torch in place of an earlier one: the kernels may be missing only today."""
    from kernels import registry

    if registry.unavailable("cpu") and (calibration.model, calibration.dtype) in load_calibrations():
        terminal.note(
            f"[yellow]not saved: measured without the C++ kernels; the earlier calibration of {calibration.model} "
            f"in {calibration.dtype} stays[/]"
        )
    else:
        save_calibration(calibration)


def _rows(calibrations: list[Calibration]) -> dict[str, list[float]]:
    rates = [entry.rates for entry in calibrations]
    return {
        "matrix products, GFLOP/s": [rate.flops / 1e9 for rate in rates],
        "weights read, GB/s": [rate.bytes_per_s / 1e9 for rate in rates],
        "KV read in decodes, GB/s": [rate.attention_bytes_per_s / 1e9 for rate in rates],
        "attention in prompts, GFLOP/s": [rate.attention_flops / 1e9 for rate in rates],
        "adapters read, GB/s": [rate.adapter_bytes_per_s / 1e9 for rate in rates],
        "adapters' products, GFLOP/s": [rate.adapter_flops / 1e9 for rate in rates],
        "per step, µs": [1e6 * rate.step_overhead for rate in rates],
        "per row, µs": [1e6 * rate.row_overhead for rate in rates],
        "per row that looks up n-grams, µs": [1e6 * rate.lookup_overhead for rate in rates],
        "per layer of a step with a prompt, µs": [1e6 * rate.eager_overhead for rate in rates],
        "per layer of a step with adapters, µs": [1e6 * rate.adapter_overhead for rate in rates],
        "fit: median error, %": [100 * entry.fit_error for entry in calibrations],
    }


def check(
    model: Annotated[str, argument("shop, shop-draft, dummy-103m or dummy-386m.")] = "shop",
    dtype: Annotated[str, option("fp32, bf16, int8 or int4.")] = "fp32",
    workload: Annotated[
        list[str] | None, option("Name of a workload; repeatable. By default all twelve.")
    ] = None,
    rounds: Annotated[int, option("Live runs of each workload, after one to warm up.", min=1)] = 3,
    saved: Annotated[
        bool, option("Use the result of prep sim calibrate instead of calibrating now.", "--saved")
    ] = False,
    resume: Annotated[bool, option("Go on with the same check, interrupted before.", "--resume")] = False,
    cpu_time: CpuTime = False,
    json: JsonOption = False,
) -> None:
    """Compare the simulator with the live engine on the same requests, in twelve workloads.

    Exit code 0: the median error is at most 10 %, and three quarters of the figures are within 15 %. 1: not. 4: not,
    and the live runs differ too much among themselves for a verdict. shop takes about 110 s on 2 cores.

    \b
    Examples:
      prep sim check shop --dtype bf16
      prep sim check dummy-386m --dtype bf16 --workload "mixed lengths" --rounds 2
      OMP_NUM_THREADS=1 prep sim check shop --cpu-time
    """
    with terminal.loading("the engine"):
        from app.bench.calibrate import engine_dtype, require_measured
        from app.bench.sim_check import Interrupted, as_json
        from app.bench.sim_check import check as compare
        from app.bench.sim_workloads import chosen
    require_measured(model)
    engine_dtype(dtype)
    precision = get_precision(dtype).name
    known = load_calibrations().get((model, precision)) if saved else None
    if saved and known is None:
        raise terminal.Problem(
            f"nothing was measured for {model} in {precision} yet",
            f"prep sim calibrate {model} --dtype {dtype}",
        )
    asked = chosen(workload or [])
    try:
        with terminal.status(lines_in_pipe=True) as tell:
            report = compare(
                tell, model, precision, asked, rounds=rounds, cpu_time=cpu_time, saved=known, resume=resume
            )
    except Interrupted as error:
        command = ["prep", "sim", "check", model, "--dtype", dtype, "--rounds", str(rounds)]
        for name in workload or []:
            command += ["--workload", name]
        flags = {"--saved": saved, "--cpu-time": cpu_time, "--json": json, "--resume": True}
        command += [flag for flag, is_set in flags.items() if is_set]
        threads = "OMP_NUM_THREADS=1 " if cpu_time else ""
        terminal.note("[dim]interrupted[/]")
        terminal.next_command(threads + shlex.join(command))
        raise typer.Exit(terminal.INTERRUPTED) from error
    if json:
        terminal.print_json(as_json(report))
    else:
        _show(report)
    if not report.passed:
        if report.is_noisy:
            terminal.note(
                f"[yellow]inconclusive, the machine was busy: live rounds differ too much. Close other programs, use "
                f"--rounds {2 * rounds}, or count processor time (--cpu-time)[/]"
            )
        raise typer.Exit(terminal.INCONCLUSIVE if report.is_noisy else terminal.CHECKS_FAILED)
    if not json:
        terminal.next_command(
            f"prep sim run --gpu cpu --model {model} --dtype {dtype} --prompt 100 --output 30", "at any load"
        )


def _show(report: CheckReport) -> None:
    """Print the figures of every workload, and the verdict."""
    table = terminal.table(
        "workload", "", "live", "simulated", "error", "live runs differ by", "", left=("",)
    )
    for outcome in report.outcomes:
        words = f"{outcome.workload}, {counted(outcome.num_requests, 'request')}"
        for figure in outcome.figures:
            values = [figure.live_median, figure.simulated_median]
            is_rate = figure.name.endswith("/s")
            shown = (f"{value:,.0f}" if is_rate else duration(value) for value in values)
            table.add_row(
                words,
                figure.name,
                *shown,
                f"{figure.error:+.1%}",
                f"{figure.spread:.0%}",
                terminal.mark(figure.is_within),
            )
            words = ""
    terminal.show(f"{report.model} in {report.dtype}, {counted(report.rounds, 'round')}", table)
    for outcome in report.outcomes:
        if drafting := outcome.drafting:
            terminal.say(
                f"[dim]{outcome.workload}: {drafting.coverage:.0%} of the rows got drafts, about {drafting.length} "
                f"each, {drafting.acceptance:.0%} accepted; measured live, and used by the simulator[/]"
            )
    terminal.say(
        f"median error {report.median_error:.1%}; {report.num_within} of {len(report.figures)} figures within 15 %"
    )
