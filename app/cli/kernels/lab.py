"""`prep kernels lab`: check a learner's kernel, then report what the compilers make of it."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.exercises import check_source, print_report
from app.cli.kernels.explaining import used
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
    found = find_lab(lab)
    if found.track != "kernels":
        raise terminal.Problem(
            f"{found.number} is a lab of the track {found.track}", f"prep lab check {found.number}"
        )
    source = solution(found.number) if reference else workspace.lab_source(found)
    report = check_source(found.exercise, source, keep=not reference)
    on_gpu = _on_gpu(found, source) if found.language != "cpp" and not report.is_stub else None
    if json:
        terminal.print_json({**report.to_json(), "gpu": on_gpu and [_facts(*each) for each in on_gpu]})
    else:
        print_report(report, "lab")
        if on_gpu:
            _show(on_gpu)
        if report.ok:
            terminal.next_command(f"prep lab {'race' if found.has_race else 'follow-ups'} {found.number}")
    if not report.ok:
        raise typer.Exit(terminal.CHECKS_FAILED)


def _list(json: bool) -> None:
    rows = [
        (each.number, each.title, str(each.exercise.minutes)) for each in labs() if each.track == "kernels"
    ]
    if json:
        return terminal.print_json([{"name": name, "title": title} for name, title, _ in rows])
    terminal.show(
        "Labs of kernels", terminal.table("lab", "builds", "min", left=("lab", "builds"), rows=rows)
    )
    terminal.next_command(f"prep lab new {rows[0][0]}")


def _on_gpu(found: Lab, source: str) -> list[tuple[KernelReport, GpuWork]] | None:
    from lessons.course.gpu_report import NotCompiledForGpu, gpu_reports

    work: GpuWork = import_module(f"lessons.{found.name}.race").GPU
    try:
        with terminal.status("compiling for sm_80 and sm_90"):
            return [(report, work) for report in gpu_reports(found, source, work)]
    except NotCompiledForGpu as error:
        terminal.note(f"no compile report: {terminal.literal(error)}")
        return None


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
        "least_seconds": max(memory, compute),
        "bound": "memory" if memory >= compute else "compute",
    }


def _show(on_gpu: list[tuple[KernelReport, GpuWork]]) -> None:
    work = on_gpu[0][1]
    terminal.say(
        f"\n[bold]on a GPU[/] {terminal.literal(work.says)}: at least {work.num_bytes / 1e6:,.1f} MB"
    )
    for report, _ in on_gpu:
        facts = _facts(report, work)
        terminal.say(f"  {terminal.literal(report.name)} {used(report)}")
        terminal.say(
            f"          widest access {facts['widest_access_bytes']} B, {facts['waves']:.1f} waves; "
            f"{facts['gpu']}: at least {1e6 * facts['least_seconds']:,.1f} us, bound by {facts['bound']}"
        )
    terminal.say("[dim]at least: bytes over bandwidth, FLOPs over the peak; the compilers give the rest[/]")
