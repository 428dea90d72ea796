"""`prep bench`: what `app.bench` measures, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import screen

if TYPE_CHECKING:
    from app.bench.timing import Tell

app = screen.command_app(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.callback()
def bench() -> None:
    """Benchmarks of the engine. Ctrl-C ends one early and prints what it has."""


@contextmanager
def status() -> Iterator[Tell]:
    """A line on stderr that says what is being measured; silent where nobody watches."""
    console = screen.err()
    if not screen.is_live(console):
        yield lambda text: None
        return
    with console.status("starting") as line:
        yield lambda text: line.update(f"[dim]{text}[/]")


def finish(report: Any, next_command: str, why: str) -> None:
    """The closing line, and the exit code of a benchmark that was cut short."""
    if report.interrupted:
        screen.err().print("[yellow]interrupted: only what was measured until then[/]")
        raise typer.Exit(screen.INTERRUPTED)
    screen.next_command(next_command, why)


@app.command()
def scheduler(
    requests: Annotated[
        int, typer.Option("--requests", min=1, help="Requests that decode in each step.")
    ] = 256,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to time for each figure.")] = 300,
    json: Json = False,
) -> None:
    """What a step costs the scheduler, and whether it depends on how many requests wait.

    The worker is a stand-in that answers at once: no model is loaded, only Python runs.

    Example: prep bench scheduler --requests 256
    """
    from app.bench.scheduler import measure

    with status() as tell:
        report = measure(tell, requests=requests, steps=steps)
    if json:
        screen.print_json(report)
        raise typer.Exit(screen.INTERRUPTED if report.interrupted else 0)

    if report.decode is not None:
        table = screen.table("", "median", "p90", "p99", "max")
        for name in ("schedule", "update", "total"):
            times = getattr(report.decode, name)
            table.add_row(name, *(f"{value:.2f}" for value in (times.p50, times.p90, times.p99, times.max)))
        screen.show(f"{requests} decodes per step, nobody waiting (ms)", table)
    if report.queues:
        table = screen.table("waiting", "because", "median", "p99", "µs to add one", left=("because",))
        for row in report.queues:
            figures = (f"{row.total.p50:.2f}", f"{row.total.p99:.2f}", f"{row.add_us:.1f}")
            table.add_row(f"{row.waiting:,}", row.blocked_by, *figures)
        screen.show(f"the same with requests waiting (ms per step, {steps} steps each)", table)
    finish(report, "prep bench throughput", "how much of a step is the model")
