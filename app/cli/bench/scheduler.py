"""`prep bench scheduler`: the scheduler's time per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.bench.common import Json, finish, measuring

if TYPE_CHECKING:
    from app.bench.scheduler import SchedulerReport


def scheduler(
    requests: Annotated[
        int, typer.Option("--requests", min=1, help="Requests that decode in each step.")
    ] = 256,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to time for each figure.")] = 300,
    json: Json = False,
) -> None:
    """Measure the scheduler's time per step, with an empty and with a long queue.

    A fake worker answers at once: no model is loaded, only Python runs.

    Example: prep bench scheduler --requests 256
    """
    from app.bench.scheduler import measure

    with measuring() as tell:
        report = measure(tell, requests=requests, steps=steps)
    if not json:
        show_scheduler(report)
    finish(report, as_json=json, next_command="prep bench throughput", why="the share of the model in a step")


def show_scheduler(report: SchedulerReport) -> None:
    if report.decode is not None:
        table = terminal.table("", "median", "p90", "p99", "max")
        for name in ("schedule", "update", "total"):
            times = getattr(report.decode, name)
            table.add_row(name, *(f"{value:.2f}" for value in (times.p50, times.p90, times.p99, times.max)))
        terminal.show(f"{report.decode.requests} decodes per step, empty queue (ms)", table)
    if report.queues:
        table = terminal.table("waiting", "because", "median", "p99", "µs to add one", left=("because",))
        for row in report.queues:
            figures = (f"{row.total.p50:.2f}", f"{row.total.p99:.2f}", f"{row.add_us:.1f}")
            table.add_row(f"{row.waiting:,}", row.blocked_by, *figures)
        terminal.show("the same with requests waiting (ms per step)", table)
