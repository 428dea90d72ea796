"""`prep kernels lab`: check a learner's kernel, then report what the compilers make of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from app.cli import terminal
from app.cli.exercises import check_source, end, print_report
from app.cli.options import JsonOption, argument, option
from lessons.course import workspace
from lessons.course.lesson_files import Lab, find_lab, labs, solution

if TYPE_CHECKING:
    from kernels.compile_report import KernelReport
    from lessons.course.gpu_report import GpuWork


def lab(
    lab: Annotated[str | None, argument("Name of a lab: cuda-rms-norm.", metavar="[LAB]")] = None,
    reference: Annotated[bool, option("Report on the reference solution instead.", "--solution")] = False,
    json: JsonOption = False,
) -> None:
    """Check your kernel of a lab; then registers, occupancy, and the least time on an A100 and an H100.

    C++ is raced against ours instead. Without a name: the labs of the track kernels.

    \b
    Examples:
      prep kernels lab
      prep kernels lab cuda-rms-norm
      prep kernels lab triton-rms-norm --solution
    """
    if lab is None:
        return _list(json)
    chosen = find_lab(lab)
    if chosen.track != "kernels":
        raise terminal.Problem(
            f"{chosen.number} is a lab of the track {chosen.track}", f"prep lab check {chosen.number}"
        )
    source = solution(chosen.number) if reference else workspace.lab_source(chosen)
    report = check_source(chosen.exercise, source, keep=not reference)
    on_gpu = _on_gpu(chosen, source) if chosen.language != "cpp" and not report.is_stub else []
    if json:
        facts = [_facts(kernel, work) for work, reports in on_gpu for kernel in reports]
        terminal.print_json({**report.to_json(), "gpu": facts or None})
    else:
        print_report(report, "lab")
        for work, reports in on_gpu:
            _show(work, reports)
        if on_gpu:
            terminal.say(
                "[dim]Predicted time: bytes over bandwidth or FLOPs over the peak, the longer one.[/]"
            )
        if report.ok:
            terminal.next_command(f"prep lab {'race' if chosen.has_race else 'follow-ups'} {chosen.number}")
    end([report])


def _list(json: bool) -> None:
    rows = [(lab.number, lab.title, str(lab.exercise.minutes)) for lab in labs() if lab.track == "kernels"]
    if json:
        return terminal.print_json([{"name": name, "title": title} for name, title, _ in rows])
    terminal.show(
        "Labs of kernels", terminal.table("lab", "builds", "min", left=("lab", "builds"), rows=rows)
    )
    terminal.next_command(f"prep lab new {rows[0][0]}")


def _on_gpu(chosen: Lab, source: str) -> list[tuple[GpuWork, list[KernelReport]]]:
    """Return each launch of the lab with its reports by architecture; none if the file does not compile."""
    from lessons.course.gpu_report import NotCompiledForGpu, gpu_reports, gpu_works

    try:
        with terminal.status("compiling for sm_80 and sm_90"):
            return [(work, gpu_reports(chosen, source, work)) for work in gpu_works(chosen)]
    except NotCompiledForGpu as error:
        terminal.note(f"no compile report: {terminal.literal(error)}")
        return []


def _facts(report: KernelReport, work: GpuWork) -> dict[str, Any]:
    from engine.sim.hardware import get_hardware
    from lessons.course.gpu_report import GPUS, waves, widest_access

    gpu = get_hardware(GPUS[report.arch])
    memory, compute = work.num_bytes / gpu.bytes_per_s, work.flops / gpu.peak("float32")
    facts = {name: value for name, value in asdict(report).items() if name not in ("ptx", "file")}
    return {
        **facts,
        "occupancy": report.occupancy.ratio,
        "limited_by": report.occupancy.limited_by,
        "widest_access_bytes": widest_access(report),
        "waves": waves(report, work),
        "gpu": gpu.name,
        "bytes": work.num_bytes,
        "flops": work.flops,
        "least_seconds": max(memory, compute),
        "bound": "memory" if memory >= compute else "compute",
    }


def _show(work: GpuWork, reports: list[KernelReport]) -> None:
    """Print a table for each kernel of a launch, a column for each GPU."""
    for name in dict.fromkeys(report.name for report in reports):
        columns = {_gpu(report): _column(report, work) for report in reports if report.name == name}
        what, *_ = columns.values()
        rows = [(row, *(column[row] for column in columns.values())) for row in what]
        table = terminal.table("on a GPU", *columns, rows=rows)
        terminal.show(f"\n{terminal.literal(name)}[/]: {terminal.literal(work.says)}[bold]", table)


def _gpu(report: KernelReport) -> str:
    from lessons.course.gpu_report import GPUS

    return f"{GPUS[report.arch].upper()} (sm_{report.arch})"


def _column(report: KernelReport, work: GpuWork) -> dict[str, str]:
    facts = _facts(report, work)
    spilled = report.spill_store_bytes + report.spill_load_bytes
    occupancy = report.occupancy
    return {
        "registers of a thread": str(report.registers),
        "bytes spilled by a thread": f"[bold red]{spilled}[/]" if spilled else "0",
        "shared memory of a block": f"{report.shared_bytes:,} B",
        "occupancy": f"{occupancy.ratio:.0%}, {occupancy.warps} warps",
        "occupancy limited by": occupancy.limited_by,
        "widest load or store": f"{facts['widest_access_bytes']} B",
        "waves of blocks": f"{facts['waves']:.1f}",
        "bytes moved, at least": f"{facts['bytes'] / 1e6:,.1f} MB",
        "predicted time, at least": f"{1e6 * facts['least_seconds']:,.1f} us",
        "bound by": facts["bound"],
    }
