"""`prep kernels bench`: measured time, and the share of this machine's limit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from app.bench.timing import Tell
from app.cli import terminal
from app.cli.kernels.names import backends, how, not_written, operation
from app.cli.options import JsonOption, argument, option

if TYPE_CHECKING:
    from kernels.bench.run import BenchReport

QUICK_S, THOROUGH_S = 0.1, 0.3


def bench(
    op: Annotated[str | None, argument("One operation; all of them by default.", metavar="[OP]")] = None,
    everything: Annotated[
        bool, option("Longer samples; on a GPU also the open questions, and RESULTS.md.", "--all")
    ] = False,
    backend: Annotated[str, option("cpu, triton, cuda, reference, or all.")] = "all",
    seconds: Annotated[float | None, option("For each candidate of each shape.", min=0.01)] = None,
    write: Annotated[
        bool, option("Put the figures into kernels/RESULTS.md: this device's section.", "--write")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Time of every operation beside the least that this machine needs for it.

    Bandwidth and GEMM rates are measured in the same run; an operation's limit is what its bytes and FLOPs
    need at these (kernels/bench/roofline.py). Implementations and what else computes the
    same (torch, FlashInfer where installed) take turns. Ctrl-C ends it early and prints what it has.

    \b
    Examples:
      prep kernels bench paged_decode
      prep kernels bench --all --json
      prep kernels bench --all --write
    """
    with terminal.loading("the kernels"):
        from kernels import registry

        ops = registry.OPS if op is None else (operation(op),)
        named = () if backend.strip().lower() == "all" else backends(backend)
        if op is not None and named and all((ops[0], name) not in registry.BY_NAME for name in named):
            raise not_written(ops[0], named)
        device, chosen = _candidates(backend)
    write = write or (everything and op is None and device == "cuda")
    if write and not (everything and op is None and backend == "all"):
        raise terminal.Problem("RESULTS.md holds whole runs only", "prep kernels bench --all --write")
    pace = seconds or (THOROUGH_S if everything else QUICK_S)
    with terminal.status(lines_in_pipe=True) as tell:
        report = _measure(device, ops, chosen, tell, everything, pace)
    if not report.measurements and not report.interrupted:
        told = "; ".join(
            dict.fromkeys(f"{omission.candidate}: {omission.reason}" for omission in report.omitted)
        )
        raise terminal.Problem(
            f"no implementation of {', '.join(ops)} in {', '.join(chosen)} could be measured. {told}".strip(),
            "prep kernels list",
        )
    _tell(report, json=json, write=write)


def _candidates(backend: str) -> tuple[str, tuple[str, ...]]:
    """(device type, backends that run on it natively, as far as asked for)"""
    from kernels.bench.run import NATIVE

    device = how("reference").device
    if backend.strip().lower() == "all":
        return device, NATIVE[device]
    (name,) = backends(backend)
    way = how(name)
    if way.state != "native" or name not in NATIVE[device]:
        reasons = {"native": f"its tensors are not on the {device}", "slow": "without a GPU it only checks"}
        reason = reasons.get(way.state, way.text)
        raise terminal.Problem(
            f"{name} cannot be measured here: {reason}",
            f"prep kernels check --backend {name}   (is it right?)",
            code=terminal.ENVIRONMENT,
        )
    return device, (name,)


def _measure(
    device: str, ops: Sequence[str], chosen: Sequence[str], tell: Tell, everything: bool, seconds: float
) -> BenchReport:
    from kernels.bench.run import measure_limits_again, measure_ops, new_report

    start = perf_counter()
    report = new_report(device, tell)
    try:
        measure_ops(report, ops, chosen, tell, seconds=seconds)
        if everything and device == "cuda" and len(ops) > 1:
            from kernels.bench.questions import answer_all

            answer_all(report, tell)
        measure_limits_again(report, tell)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = perf_counter() - start
    return report


def _tell(report: BenchReport, *, json: bool, write: bool) -> None:
    from kernels.bench import results

    if json:
        terminal.print_json(results.as_dict(report))
    else:
        _show(report)
    if report.interrupted:
        raise terminal.interrupted("measured")
    if write:
        results.write(report, results.RESULTS)
        terminal.err().print(f"written to {results.RESULTS}", style="dim", markup=False, soft_wrap=True)
    if not json:
        best = report.best_of_each()
        farthest = min(best, key=report.share)
        why = "read why it takes this long"
        if len({measurement.op for measurement in best}) > 1:
            why = "the farthest from its limit; read why"
        terminal.next_command(f"prep kernels explain {farthest.op}", why)


def _show(report: BenchReport) -> None:
    from kernels.bench import results

    for op in dict.fromkeys(measurement.op for measurement in report.measurements):
        terminal.out().print(f"\n[bold]{op}[/]")
        for workload in dict.fromkeys(
            measurement.workload for measurement in report.measurements if measurement.op == op
        ):
            _show_workload(report, op, workload)
    terminal.say(f"\n[dim]{terminal.literal(results.machine_line(report))}[/]")
    terminal.say(f"[dim]limits: {results.limits_line(report)}[/]")
    if any(report.share(measurement) > 1 for measurement in report.measurements):
        terminal.say(
            "[dim]over 100 %: data was still in a cache, or the limit was measured at a slower moment[/]"
        )
    if os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1):
        terminal.say(f"{terminal.mark(None)} other programs use the cores: these times are too long")
    for bar in results.bars(report):
        terminal.say(f"{terminal.mark(bar.met)} {bar.what}: {bar.measured:.2f}, aim {bar.least:.2f}")
    for answer in report.answers:
        terminal.say(f"\n[bold]{answer.question}[/]\n{answer.conclusion}")


def _show_workload(report: BenchReport, op: str, workload: str) -> None:
    from kernels.bench import results

    rows = [
        measurement
        for measurement in report.measurements
        if (measurement.op, measurement.workload) == (op, workload)
    ]
    limit = report.limit(rows[0])
    terminal.say(f"  {workload}  [dim]limit {results.microseconds(limit.seconds)}, {limit.bound}[/]")
    for row in sorted(rows, key=lambda row: row.seconds):
        rival = report.speedup(row)
        name = row.candidate if row.ours else f"[dim]{row.candidate}[/]"
        versus = "" if rival is None else f"  {rival[0]:.2f} x [dim]{rival[1]}[/]"
        pad = " " * max(1, 30 - len(row.candidate))
        time, share = results.microseconds(row.seconds), 100 * report.share(row)
        terminal.say(f"    {name}{pad}{time:>12} {share:5.0f} %{versus}")
    for left_out in report.omitted:
        if (left_out.op, left_out.workload) == (op, workload):
            terminal.say(f"    [dim]{left_out.candidate}: {terminal.literal(left_out.reason)}[/]")
