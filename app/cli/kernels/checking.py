"""`prep kernels check`: every operation against the reference in float64."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.kernels.names import backends, how, operation

if TYPE_CHECKING:
    from rich.table import Table

    from kernels.check.cases import Size
    from kernels.check.jobs import Job
    from kernels.check.run import CheckReport

WITHOUT_DTYPE = ("sample", "apply_penalties", "gather_logprobs", "apply_token_bitmask")
"""Logits are fp32 whatever the model's type."""
FIRST_FAILURES = 5
MAX_WORKERS = 8


def check(
    backend: Annotated[str, typer.Option(help="cpu, triton, cuda, reference, or all.")] = "all",
    op: Annotated[str | None, typer.Option(help="One operation; all of them by default.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All types, and large shapes on a GPU.")] = False,
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16 only.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other numbers and shapes.")] = 0,
    case: Annotated[str | None, typer.Option(help="One case by its name, or several: 'decode*'.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes; on a GPU several by default, they compile side by side."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Compare every operation with the reference in float64, on random shapes. Exit code 1 if one is wrong.

    Page boundaries, padding, stale block tables, NaN in unused slots, strided views, quantised caches; a row alone
    must equal the row in a batch bit for bit. Without a GPU, Triton kernels run in Triton's
    interpreter and CUDA kernels on a host shim, with tiny shapes.

    \b
    Examples:
      prep kernels check
      prep kernels check --backend cpu --op paged_attention
      prep kernels check --backend cuda --op rms_norm --dtype float16 --seed 7
    """
    with terminal.loading("the kernels"):
        ops = None if op is None else [operation(op)]
        chosen = backends(backend)
        jobs, skipped = plan(chosen, ops, everything=everything, dtype=dtype, seed=seed, case=case)
    if not jobs:
        raise _nothing_to_do(chosen, ops, skipped)
    start = perf_counter()
    reports, interrupted = _run(jobs, workers or _workers(jobs))
    seconds = perf_counter() - start
    if json:
        shown = [{**asdict(report), "ok": not report.failures} for report in reports]
        terminal.print_json(
            {"reports": shown, "skipped": skipped, "interrupted": interrupted, "seconds": seconds}
        )
    else:
        _show(reports, skipped, seconds)
    _finish(reports, interrupted, quiet=json)


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
        if way.state == "not":
            skipped[backend] = way.text
            continue
        for name in ops or registry.OPS:
            if all(each.backend != backend for each in registry.implementations(name)):
                continue
            for each in _dtypes(name, backend, way.state, way.device, everything, dtype):
                for size in _sizes(way.state, way.device, everything):
                    jobs.append(Job(name, backend, each, way.device, size, seed, case, way.environment))
    return jobs, skipped


def _dtypes(
    op: str, backend: str, state: str, device: str, everything: bool, only: str | None
) -> tuple[str, ...]:
    known = ("float32", "float16", "bfloat16")
    if only is not None:
        if only not in known:
            raise terminal.Problem(f"unknown dtype {only!r}; there are: {', '.join(known)}")
        if (backend, state, only) == ("triton", "slow", "bfloat16"):
            raise terminal.Problem(
                "Triton's interpreter computes bfloat16 wrongly",
                next_step="--dtype float32 or float16 here; bfloat16 on a machine with a GPU",
            )
        return (only,)
    if op in WITHOUT_DTYPE:
        return ("float32",)
    if everything:
        return known[:2] if (backend, state) == ("triton", "slow") else known
    return ("float32", "bfloat16") if device == "cuda" else ("float32",)


def _sizes(state: str, device: str, everything: bool) -> tuple[Size, ...]:
    if state == "slow":
        return ("tiny",)
    return ("small", "large") if device == "cuda" and everything else ("small",)


def _nothing_to_do(chosen: list[str], ops: list[str] | None, skipped: dict[str, str]) -> terminal.Problem:
    if skipped:
        told = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        return terminal.Problem(f"nothing can be checked here: {told}", code=terminal.ENVIRONMENT)
    from kernels import registry

    (op,) = ops or ("",)
    known = ", ".join(each.backend for each in registry.implementations(op))
    return terminal.Problem(f"{op} is not written in {' or '.join(chosen)}; implementations: {known}")


def _workers(jobs: list[Job]) -> int:
    if all(job.device == "cpu" for job in jobs):
        return 1
    return max(1, min(MAX_WORKERS, (os.cpu_count() or 1) // 2, len(jobs)))


def _run(jobs: list[Job], workers: int) -> tuple[list[CheckReport], bool]:
    """(a report for each job that was begun, whether Ctrl-C ended it)"""
    from common.child_process import ProcessEnded
    from kernels.check.jobs import run_jobs

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
        raise terminal.Problem(str(died), next_step="./prep doctor", code=terminal.ENVIRONMENT) from died
    return list(reports.values()), False


def _show(reports: list[CheckReport], skipped: dict[str, str], seconds: float) -> None:
    console = terminal.out()
    console.print(_table(reports))
    for name, reason in skipped.items():
        console.print(
            f"{terminal.mark(None)} {name} is not checked: {terminal.literal(reason)}", soft_wrap=True
        )
    for report in reports:
        _show_failures(report)
    passed = sum(report.count("passed") for report in reports)
    failed = sum(len(report.failures) for report in reports)
    told = {each.dtype for each in reports}
    console.print(
        f"[dim]types: {', '.join(sorted(told))}.  17 of 19: takes 17 of the cases, and all are right[/]",
        soft_wrap=True,
    )
    console.print(
        f"{terminal.mark(not failed)} {passed} cases right, {failed} wrong, {seconds:.1f} s", soft_wrap=True
    )


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
    passed, failed = (
        sum(each.count("passed") for each in reports),
        sum(len(each.failures) for each in reports),
    )
    total = passed + failed + sum(each.count("unsupported") for each in reports)
    if not total:
        return ""
    if not passed + failed:
        return "[dim]takes none[/]"
    told = f"{failed} of {passed + failed} wrong" if failed else f"{passed}"
    left_out = f"[dim] of {total}[/]" if passed + failed < total and not failed else ""
    return f"{terminal.mark(not failed)} {told}{left_out}"


def _show_failures(report: CheckReport) -> None:
    console = terminal.out()
    for failure in report.failures[:FIRST_FAILURES]:
        console.print(
            f"\n[bold red]{report.op}, {report.backend}, {report.dtype}[/]: {terminal.literal(failure.name)}",
            soft_wrap=True,
        )
        console.print(f"  {terminal.literal(failure.message)}", soft_wrap=True)
        for line in failure.arguments.splitlines():
            console.print(f"    [dim]{terminal.literal(line)}[/]", soft_wrap=True)
        again = f"prep kernels check --backend {report.backend} --op {report.op} --dtype {report.dtype}"
        console.print(
            f"  again: [bold cyan]{again} --seed {report.seed} --case {terminal.literal(repr(failure.name))}[/]",
            soft_wrap=True,
        )
    if left := len(report.failures) - FIRST_FAILURES:
        if left > 0:
            console.print(f"  and {left} more of this kind")


def _finish(reports: list[CheckReport], interrupted: bool, *, quiet: bool) -> None:
    wrong = [report for report in reports if report.failures]
    if interrupted:
        terminal.err().print("[yellow]interrupted: only what was checked until then[/]")
        raise typer.Exit(terminal.INTERRUPTED)
    if not quiet:
        if wrong:
            terminal.next_command(
                f"prep kernels explain {wrong[0].op}", "read the implementations side by side"
            )
        else:
            terminal.next_command("prep kernels bench", "measure them against this machine's limits")
    raise typer.Exit(terminal.CHECKS_FAILED if wrong else 0)
