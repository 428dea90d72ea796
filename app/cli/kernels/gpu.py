"""`prep kernels gpu`: everything that only a GPU can tell, in one run of limited length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.kernels.checking import plan as check_plan
from app.cli.options import option
from prep_common.text import counted

if TYPE_CHECKING:
    from app.bench.timing import Tell
    from kernels.bench.run import BenchReport
    from kernels.check.run import CheckReport

BACKENDS = ("triton", "cuda")
FIRST = ("paged_attention", "reshape_and_cache", "linear", "rms_norm", "int4_linear", "fp8_linear", "sample")
"""Operations in the order in which they are worth knowing; the others follow."""
CHECK_S, BENCH_S, QUESTIONS_S, LIMITS_S = 20, 15, 180, 20
"""Expected seconds for an operation, for all questions, and for bandwidth and GEMM rates, kernels not yet compiled."""
WORKERS = 8


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of the run, in order of importance."""

    name: str
    seconds: float
    """Expected; a part is left out if it is longer than the time left."""
    run: Callable[[Session, Tell], None]


@dataclass(slots=True)
class Session:
    """A run on a GPU: its deadline, and what it has found so far."""

    deadline: float
    report: BenchReport
    checks: list[CheckReport]

    def seconds_left(self) -> float:
        return self.deadline - perf_counter()


def gpu(
    plan: Annotated[bool, option("List the parts with expected durations.", "--plan")] = False,
    compile_only: Annotated[
        bool,
        option(
            "Compile all kernels for sm_80 and sm_90, and check resources; needs no GPU.", "--compile-only"
        ),
    ] = False,
    minutes: Annotated[float, option("Time for everything; what does not fit is left out.", min=1)] = 20,
) -> None:
    """Check and measure all GPU kernels, the most important first, and write RESULTS.md.

    Every GPU form is compared with the reference, measured beside FlashInfer and FlashAttention-3 where they are
    installed, and the open questions are answered. Parts that do not fit into the time are named in RESULTS.md.
    Ctrl-C ends it early and keeps what it has.

    \b
    Examples:
      prep kernels gpu --plan
      prep kernels gpu --compile-only
      prep kernels gpu --minutes 20
    """
    if plan:
        return _show_plan(minutes)
    if compile_only:
        return _compile_all()
    import torch

    if not torch.cuda.is_available():
        raise terminal.Problem(
            "this run measures a GPU, and torch sees no CUDA device",
            "prep kernels gpu --compile-only   (compiles and checks resources without one)",
            code=terminal.ENVIRONMENT,
        )
    with terminal.status() as tell:
        session = _run(minutes, tell)
    _finish(session)


def parts() -> Iterator[Part]:
    """Yield attention first (checked, measured), then the other checks, measurements and the questions."""
    from kernels import registry

    in_order = sorted(registry.OPS, key=lambda op: FIRST.index(op) if op in FIRST else len(FIRST))
    with_gpu_form = [
        op
        for op in in_order
        if any(implementation.backend in BACKENDS for implementation in registry.implementations(op))
    ]
    attention, *others = with_gpu_form
    yield _check_part(attention)
    yield _bench_part(attention)
    yield from map(_check_part, others)
    yield from map(_bench_part, others)
    yield Part("open questions: layout, split size, int4 crossover, sampling", QUESTIONS_S, _ask)


def fits(part: Part, seconds_left: float) -> bool:
    """Return whether a part fits into the time left, with the limits of the machine measured again at the end."""
    return part.seconds + LIMITS_S <= seconds_left


def _check_part(op: str) -> Part:
    def run(session: Session, tell: Tell) -> None:
        from kernels.check.jobs import run_jobs

        jobs, _ = check_plan(BACKENDS, [op])
        reports = {job: job.empty_report() for job in jobs}
        session.checks += reports.values()
        for job, result in run_jobs(jobs, min(WORKERS, len(jobs))):
            reports[job].results.append(result)

    return Part(f"check {op}", CHECK_S, run)


def _bench_part(op: str) -> Part:
    def run(session: Session, tell: Tell) -> None:
        from kernels.bench.run import NATIVE, measure_ops

        measure_ops(session.report, [op], NATIVE["cuda"], tell, seconds=0.1)

    return Part(f"measure {op}", BENCH_S, run)


def _ask(session: Session, tell: Tell) -> None:
    from kernels.bench.questions import answer_all

    answer_all(session.report, tell)


def _run(minutes: float, tell: Tell) -> Session:
    from kernels.bench.run import Omitted, measure_limits_again, new_report

    start = perf_counter()
    session = Session(start + 60 * minutes, new_report("cuda", tell), [])
    report = session.report
    try:
        for part in parts():
            if not fits(part, session.seconds_left()):
                reason = f"expected {part.seconds:.0f} s, {max(0.0, session.seconds_left()):.0f} s were left"
                report.omitted.append(Omitted(part.name, "all", "all", reason))
                continue
            tell(part.name)
            try:
                part.run(session, tell)
            except Exception as error:  # the other parts are still worth having
                report.omitted.append(Omitted(part.name, "all", "all", f"{type(error).__name__}: {error}"))
        measure_limits_again(report, tell)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = perf_counter() - start
    report.answers.insert(0, _checked(session.checks))
    return session


def _checked(reports: list[CheckReport]) -> Any:
    """Return the result of the checks as a section of RESULTS.md."""
    from kernels.bench.questions import Answer

    rows = [
        [
            report.op,
            report.backend,
            report.dtype,
            str(report.count("passed")),
            str(len(report.failures)),
            f"{report.worst:.2f}",
        ]
        for report in reports
        if report.count("passed") or report.failures
    ]
    wrong = [
        f"{report.op} ({report.backend}, {report.dtype}): {report.failures[0].name}"
        for report in reports
        if report.failures
    ]
    conclusion = f"Wrong: {'; '.join(wrong)}." if wrong else "Every case agrees with the reference."
    headings = ["operation", "implementation", "type", "right", "wrong", "error / allowed"]
    return Answer("Do the GPU kernels agree with the reference?", headings, rows, conclusion)


def _finish(session: Session) -> None:
    from kernels.bench import results

    report = session.report
    results.write(report, results.RESULTS)
    terminal.err().print(f"written to {results.RESULTS}", style="dim", markup=False, soft_wrap=True)
    for answer in report.answers:
        terminal.say(f"[bold]{answer.question}[/] {terminal.literal(answer.conclusion)}")
    for bar in results.bars(report):
        terminal.say(f"{terminal.mark(bar.met)} {bar.what}: {bar.measured:.2f}, aim {bar.least:.2f}")
    for left_out in report.omitted:
        terminal.say(
            f"[dim]left out: {left_out.op}, {left_out.candidate}: {terminal.literal(left_out.reason)}[/]"
        )
    if report.interrupted:
        raise typer.Exit(terminal.INTERRUPTED)
    if any(check.failures for check in session.checks):
        raise typer.Exit(terminal.CHECKS_FAILED)


def _show_plan(minutes: float) -> None:
    table = terminal.table("part", "expected", "ends after", left=("part",))
    total = float(LIMITS_S)
    table.add_row("limits of the machine: bandwidth, GEMM rates", f"{LIMITS_S} s", f"{total / 60:.1f} min")
    for part in parts():
        ends = "left out"
        if fits(part, 60 * minutes - total):
            total += part.seconds
            ends = f"{total / 60:.1f} min"
        table.add_row(part.name, f"{part.seconds:.0f} s", ends)
    terminal.out().print(table)
    terminal.say("[dim]durations are estimates[/]")


def _compile_all() -> None:
    """Compile every launch of every GPU form; exit code 1 if one spills or does not fit on an SM."""
    from kernels import registry
    from kernels.compile_report import ARCHITECTURES, KernelReport, cannot_compile, gpu_kernels

    for backend in BACKENDS:
        if reason := cannot_compile(backend):
            raise terminal.Problem(
                f"{backend} kernels cannot be compiled here: {reason}", code=terminal.ENVIRONMENT
            )
    forms = {
        implementation.entry.partition(":")[0]: implementation
        for implementation in registry.IMPLEMENTATIONS
        if implementation.backend in BACKENDS
    }
    reports: list[KernelReport] = []
    with terminal.status() as tell:
        for form in forms.values():
            for arch in ARCHITECTURES:
                for name, compile_it in gpu_kernels(form, arch):
                    tell(f"{name}, sm_{arch}")
                    reports.append(compile_it())
    table = terminal.table("file", "arch", "kernels", "most registers", "least occupancy", left=("file",))
    for file, arch in dict.fromkeys((report.file, report.arch) for report in reports):
        of_file = [report for report in reports if (report.file, report.arch) == (file, arch)]
        least = min(report.occupancy.ratio for report in of_file)
        most = max(report.registers for report in of_file)
        table.add_row(file, f"sm_{arch}", str(len(of_file)), str(most), f"{least:.0%}")
    terminal.out().print(table)
    wrong = [report for report in reports if report.spill_store_bytes or report.occupancy.blocks < 1]
    for report in wrong:
        told = (
            f"{report.spill_store_bytes} bytes spilled, {counted(report.occupancy.blocks, 'block')} on an SM"
        )
        terminal.say(f"{terminal.mark(False)} {terminal.literal(report.name)} sm_{report.arch}: {told}")
    terminal.say(f"{terminal.mark(not wrong)} {counted(len(reports), 'kernel')} compiled")
    raise typer.Exit(terminal.CHECKS_FAILED if wrong else 0)
