"""`prep bench debugger`: opening and seeking in traces of any size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.bench.common import Json, finish, measuring
from common.text import counted

if TYPE_CHECKING:
    from app.bench.debugger import DebuggerReport, RunCost
    from app.bench.timing import Spread

SIZES = ["10000x5000"]
MIN_BLOCKS = 200
"""Minimum of --size; the longest request of a generated trace needs 169."""


def debugger(
    size: Annotated[
        list[str] | None,
        typer.Option("--size", help="BLOCKSxSTEPS of a trace to make; repeatable."),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option("--trace", exists=True, dir_okay=False, help="An existing trace."),
    ] = None,
    seeks: Annotated[
        int, typer.Option("--seeks", min=1, help="Jumps to random steps, for each figure.")
    ] = 100,
    browser: Annotated[
        Path | None,
        typer.Option(
            "--browser",
            exists=True,
            dir_okay=False,
            metavar="TRACE",
            help="Time this trace in a real Chromium instead: first picture, jumps, playing.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Time a running engine in the browser instead, and its pauses."),
    ] = False,
    json: Json = False,
) -> None:
    """Measure how fast `prep app` opens and seeks large traces, and its memory.

    The real scheduler makes the traces, without a model; 100000x50000 takes two minutes.

    \b
    Examples:
      prep bench debugger
      prep bench debugger --size 100000x50000 --json
      prep bench debugger --browser run.itrace
      prep bench debugger --live
    """
    if live:
        _live(json)
        return
    if browser is not None:
        _browser(browser, json)
        return
    from app.bench.debugger import measure

    sizes = [_parsed(text) for text in (size or ([] if trace else SIZES))]
    with measuring("10 min") as tell:
        report = measure(tell, sizes, trace or [], seeks=seeks)
    if not json:
        show_debugger(report)
    finish(report, as_json=json, next_command="prep app", why="the debugger itself")


def _browser(trace: Path, json: bool) -> None:
    from app.bench.debugger_browser import RATE, measure_browser

    try:
        with measuring() as tell:
            cost = measure_browser(tell, trace)
    except RuntimeError as error:
        raise terminal.Problem(str(error), code=terminal.ENVIRONMENT) from error
    if not json:
        table = terminal.table("", "")
        inside, anywhere = cost.jump_inside, cost.jump_anywhere
        for name, figure in (
            ("block map after the address, fresh server", f"{cost.first_map_s:.2f} s"),
            ("the same in a second tab", f"{cost.next_map_s:.2f} s"),
            ("jump inside a window, median and max", f"{inside.p50:.1f} and {inside.max:.1f} ms"),
            ("jump anywhere, until the map is there", f"{anywhere.p50:.0f} and {anywhere.max:.0f} ms"),
            (
                f"playing {RATE} steps a second",
                f"{cost.frames_per_s:.0f} frames/s, {cost.steps_per_s:.0f} steps/s",
            ),
        ):
            table.add_row(name, figure)
        terminal.show(f"the page Step in Chromium: {trace.name}", table)
    finish(cost, as_json=json, next_command=f"prep app --trace {trace}", why="the debugger itself")


def _live(json: bool) -> None:
    from app.bench.debugger_live import measure_live

    try:
        with measuring() as tell:
            cost = measure_live(tell)
    except RuntimeError as error:
        raise terminal.Problem(str(error), code=terminal.ENVIRONMENT) from error
    if not json:
        table = terminal.table("", "")
        for name, figure in (
            (f"steps shown per second, engine set to {cost.pace:.0f}", f"{cost.steps_shown_per_s:.1f}"),
            ("steps that the engine ran per second", f"{cost.engine_steps_per_s:.1f}"),
            ("click until the engine stops, median and max", _median_and_max(cost.pause_engine)),
            ("click until the page shows it, median and max", _median_and_max(cost.pause_shown)),
        ):
            table.add_row(name, figure)
        terminal.show("a live engine in Chromium", table)
    finish(cost, as_json=json, next_command="prep app --page live", why="the same by hand")


def _median_and_max(times: Spread) -> str:
    return f"{times.p50:.0f} and {times.max:.0f} ms"


def _parsed(text: str) -> tuple[int, int]:
    blocks, _, steps = text.replace("_", "").replace(",", "").partition("x")
    if not (blocks.isdecimal() and steps.isdecimal() and int(blocks) >= MIN_BLOCKS and int(steps) > 0):
        raise typer.BadParameter(
            f"--size is BLOCKSxSTEPS, from {MIN_BLOCKS} blocks on, as in 10000x5000, not {text!r}"
        )
    return int(blocks), int(steps)


def show_debugger(report: DebuggerReport) -> None:
    for run in report.runs:
        table = terminal.table("", "")
        for name, figure in _figures(run):
            table.add_row(name, figure)
        terminal.show(
            f"{run.blocks:,} blocks x {counted(run.steps, 'step')}: {run.trace}, {run.file_mb:,.1f} MB", table
        )
        for warning in run.warnings:
            terminal.err().print(f"[yellow]{terminal.literal(warning)}[/]")


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
            "peak memory of the file reader",
            f"{run.reader_rss_mb:.0f} MB" if run.reader_rss_mb > 1 else "-",
        ),
    ]
