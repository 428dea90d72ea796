"""`prep kernels check`: every operation against the reference in float64."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from app.cli import terminal
from app.cli.kernels.names import How, backends, how, not_written, operation
from app.cli.options import JsonOption, argument, option

if TYPE_CHECKING:
    from kernels.check.draw import Size
    from kernels.check.jobs import Job
    from kernels.check.run import CheckReport

WITHOUT_DTYPE = ("sample", "apply_penalties", "gather_logprobs", "apply_token_bitmask")
"""Logits are fp32 whatever the model's type."""
FIRST_FAILURES = 5
MAX_WORKERS = 8


def check(
    op: Annotated[str | None, argument("One operation; all of them by default.", metavar="[OP]")] = None,
    backend: Annotated[str, option("cpu, triton, cuda, reference, or all.")] = "all",
    everything: Annotated[bool, option("All types, and large shapes on a GPU.", "--all")] = False,
    dtype: Annotated[
        str | None,
        option("float32, float16 or bfloat16 only; without --all, float32, on a GPU bfloat16 too."),
    ] = None,
    seed: Annotated[int, option("Another seed gives other numbers and shapes.", min=0)] = 0,
    case: Annotated[str | None, option("One case by its name, or several: 'decode*'.")] = None,
    workers: Annotated[
        int | None, option("Processes; on a GPU several by default, they compile side by side.", min=1)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare every operation with the reference in float64, on random shapes. Exit code 1 if one is wrong.

    Page boundaries, padding, stale block tables, NaN in unused slots, strided views, quantised caches; a row alone
    must equal the row in a batch bit for bit. Without a GPU, Triton kernels run in Triton's
    interpreter and CUDA kernels on a host shim, with tiny shapes.

    \b
    Examples:
      prep kernels check
      prep kernels check paged_attention --backend cpu
      prep kernels check rms_norm --backend cuda --dtype float16 --seed 7
    """
    with terminal.loading("the kernels"):
        ops = None if op is None else [operation(op)]
        chosen = backends(backend)
        jobs, skipped = plan(chosen, ops, everything=everything, dtype=dtype, seed=seed, case=case)
    if not jobs:
        raise _nothing_to_do(chosen, ops or (), skipped)
    start = perf_counter()
    alone = all(job.device == "cpu" for job in jobs)
    most = 1 if alone else max(1, min(MAX_WORKERS, (os.cpu_count() or 1) // 2, len(jobs)))
    reports, interrupted = _run(jobs, workers or most)
    seconds = perf_counter() - start
    if json:
        shown = [{**asdict(report), "ok": not report.failures} for report in reports]
        outcome = {"reports": shown, "skipped": skipped, "interrupted": interrupted, "seconds": seconds}
        terminal.print_json(outcome)
    else:
        _show(reports, skipped, seconds)
    if interrupted:
        raise terminal.interrupted("checked")
    wrong = [report for report in reports if report.failures]
    if wrong and not json:
        terminal.next_command(f"prep kernels explain {wrong[0].op}", "read the implementations side by side")
    elif not json:
        one = {report.op for report in reports}
        command = f"prep kernels bench {one.pop()}" if len(one) == 1 else "prep kernels bench"
        terminal.next_command(command, "measured against this machine's limits")
    raise typer.Exit(terminal.CHECKS_FAILED if wrong else 0)


def plan(
    chosen: Sequence[str],
    ops: Sequence[str] | None,
    *,
    everything: bool = False,
    dtype: str | None = None,
    seed: int = 0,
    case: str | None = None,
) -> tuple[list[Job], dict[str, str]]:
    """(what to check, backends that cannot run here and why)"""
    from kernels import registry
    from kernels.check.jobs import Job

    jobs, skipped = [], {}
    for backend in chosen:
        way = how(backend)
        written = [name for name in ops or registry.OPS if (name, backend) in registry.BY_NAME]
        if way.state == "not" and written:
            skipped[backend] = way.text
            continue
        for name in written:
            sizes: tuple[Size, ...] = ("tiny",) if way.state == "slow" else ("small",)
            if way.state != "slow" and way.device == "cuda" and everything:
                sizes = ("small", "large")
            for precision in _dtypes(name, backend, way, everything, dtype):
                for size in sizes:
                    jobs.append(Job(name, backend, precision, way.device, size, seed, case, way.environment))
    return jobs, skipped


def _dtypes(op: str, backend: str, way: How, everything: bool, only: str | None) -> tuple[str, ...]:
    known = ("float32", "float16", "bfloat16")
    if only is not None:
        if only not in known:
            raise terminal.Problem(f"unknown dtype {only!r}; there are: {', '.join(known)}")
        if (backend, way.state, only) == ("triton", "slow", "bfloat16"):
            raise terminal.Problem(
                "Triton's interpreter computes bfloat16 wrongly",
                "--dtype float32 or float16 here; bfloat16 on a machine with a GPU",
            )
        return (only,)
    if op in WITHOUT_DTYPE:
        return ("float32",)
    if everything:
        return known[:2] if (backend, way.state) == ("triton", "slow") else known
    return ("float32", "bfloat16") if way.device == "cuda" else ("float32",)


def _nothing_to_do(chosen: list[str], ops: Sequence[str], skipped: dict[str, str]) -> terminal.Problem:
    if skipped:
        told = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        return terminal.Problem(f"nothing can be checked here: {told}", code=terminal.ENVIRONMENT)
    return not_written(ops[0], chosen)


def _run(jobs: list[Job], workers: int) -> tuple[list[CheckReport], bool]:
    """(a report for each job that was begun, whether Ctrl-C ended it)"""
    from kernels.check.jobs import run_jobs
    from prep_common.child_process import ProcessEnded

    reports: dict[Job, CheckReport] = {}
    try:
        with terminal.status() as tell:
            for job, result in run_jobs(jobs, workers):
                report = reports.setdefault(job, job.empty_report())
                report.results.append(result)
                tell(f"{len(reports)} of {len(jobs)}: {job.op}, {job.backend}, {job.dtype}")
    except KeyboardInterrupt:
        return list(reports.values()), True
    except ProcessEnded as died:
        raise terminal.Problem(str(died), "./prep doctor", code=terminal.ENVIRONMENT) from died
    return list(reports.values()), False


def _show(reports: list[CheckReport], skipped: dict[str, str], seconds: float) -> None:
    terminal.out().print(_table(reports))
    for name, reason in skipped.items():
        terminal.say(f"{terminal.mark(None)} {name} is not checked: {terminal.literal(reason)}")
    for report in reports:
        _show_failures(report)
    passed = sum(report.count("passed") for report in reports)
    failed = sum(len(report.failures) for report in reports)
    told = {report.dtype for report in reports}
    legend = ""
    if any(0 < report.count("unsupported") < len(report.results) for report in reports):
        legend = ".  n of m: takes n of the m cases, and all are right"
    terminal.say(f"[dim]types: {', '.join(sorted(told))}{legend}[/]")
    right = terminal.mark(not failed if passed + failed else None)
    terminal.say(f"{right} {passed} cases right, {failed} wrong, {seconds:.1f} s")


def _table(reports: list[CheckReport]) -> Table:
    """Operations x backends, all types of an operation in one cell."""
    columns = list(dict.fromkeys(report.backend for report in reports))
    table = terminal.table("operation", *columns, "error / allowed", left=tuple(columns))
    table.columns[0].no_wrap = True
    for op in dict.fromkeys(report.op for report in reports):
        of_op = [report for report in reports if report.op == op]
        cells = [_cell([report for report in of_op if report.backend == backend]) for backend in columns]
        table.add_row(op, *cells, f"{max(report.worst for report in of_op):.2f}")
    return table


def _cell(reports: list[CheckReport]) -> str:
    passed = sum(report.count("passed") for report in reports)
    failed = sum(len(report.failures) for report in reports)
    total = passed + failed + sum(report.count("unsupported") for report in reports)
    if not total:
        return ""
    if not passed + failed:
        return "[dim]takes none[/]"
    told = f"{failed} of {passed + failed} wrong" if failed else f"{passed}"
    left_out = f"[dim] of {total}[/]" if passed + failed < total and not failed else ""
    return f"{terminal.mark(not failed)} {told}{left_out}"


def _show_failures(report: CheckReport) -> None:
    what = f"{report.op}, {report.backend}, {report.dtype}"
    for failure in report.failures[:FIRST_FAILURES]:
        terminal.say(f"\n[bold red]{what}[/]: {terminal.literal(failure.name)}")
        terminal.say(f"  {terminal.literal(failure.message)}")
        for line in failure.arguments.splitlines():
            terminal.say(f"    [dim]{terminal.literal(line)}[/]")
        again = f"prep kernels check {report.op} --backend {report.backend} --dtype {report.dtype}"
        case = terminal.literal(repr(failure.name))
        terminal.say(f"  again: [bold cyan]{again} --seed {report.seed} --case {case}[/]", whole=True)
    if len(report.failures) > FIRST_FAILURES:
        terminal.out().print(f"  and {len(report.failures) - FIRST_FAILURES} more of this kind")
