"""`prep bench debugger`: opening and seeking in traces of any size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import screen
from app.cli.bench.common import Json, finish, status

if TYPE_CHECKING:
    from app.bench.debugger import DebuggerReport, RunCost

SIZES = ["10000x5000"]
MIN_BLOCKS = 200
"""The longest request of the traces that are made needs 169."""


def debugger(
    size: Annotated[
        list[str] | None,
        typer.Option("--size", help="BLOCKSxSTEPS of a trace to make; may be given several times."),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option("--trace", exists=True, dir_okay=False, help="A trace that is there already."),
    ] = None,
    seeks: Annotated[
        int, typer.Option("--seeks", min=1, help="Jumps to random steps, for each figure.")
    ] = 100,
    json: Json = False,
) -> None:
    """What `prep app` does with a big trace: opening it, seeking, and the memory that it takes.

    The traces are made by the real scheduler, without a model. 100000x50000 takes two minutes to make.

    \b
    Examples:
      prep bench debugger
      prep bench debugger --size 100000x50000 --json
    """
    from app.bench.debugger import measure

    sizes = [_parsed(text) for text in (size or ([] if trace else SIZES))]
    with status() as tell:
        report = measure(tell, sizes, trace or [], seeks=seeks)
    if not json:
        show_debugger(report)
    finish(report, as_json=json, next_command="prep app", why="the debugger itself")


def _parsed(text: str) -> tuple[int, int]:
    blocks, _, steps = text.replace("_", "").replace(",", "").partition("x")
    if not (blocks.isdecimal() and steps.isdecimal() and int(blocks) >= MIN_BLOCKS and int(steps) > 0):
        raise typer.BadParameter(
            f"--size is BLOCKSxSTEPS, from {MIN_BLOCKS} blocks on, as in 10000x5000, not {text!r}"
        )
    return int(blocks), int(steps)


def show_debugger(report: DebuggerReport) -> None:
    for run in report.runs:
        table = screen.table("", "")
        for name, figure in _figures(run):
            table.add_row(name, figure)
        screen.show(f"{run.blocks:,} blocks x {run.steps:,} steps: {run.trace}, {run.file_mb:,.1f} MB", table)
        for warning in run.warnings:
            screen.err().print(f"[yellow]{warning}[/]")


def _figures(run: RunCost) -> list[tuple[str, str]]:
    seeks = [("a jump to another window", run.seek_window), ("a jump inside a window", run.seek_details)]
    seeks.append(("everything about one step", run.state))
    return [
        ("requests, block events", f"{run.requests:,}, {run.block_events:,}"),
        ("open, empty cache", f"{run.open_s:.2f} s"),
        ("open again", f"{run.open_again_s:.2f} s"),
        ("first picture of a step", f"{1e3 * run.first_parts_s:.0f} ms"),
        *((f"{name}, median and p99", f"{times.p50:.0f} and {times.p99:.0f} ms") for name, times in seeks),
        ("peak memory of the server", f"{run.server_rss_mb:.0f} MB"),
        (
            "peak memory of what reads the file",
            f"{run.reader_rss_mb:.0f} MB" if run.reader_rss_mb > 1 else "-",
        ),
    ]
