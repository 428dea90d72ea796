"""`prep bench debugger`: opening and seeking in traces of any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.bench.timing import Spread, Tell
from app.cli import terminal
from app.cli.bench.common import run
from app.cli.options import JsonOption, option
from prep_common.text import counted

if TYPE_CHECKING:
    from app.bench.debugger import DebuggerReport
    from app.bench.debugger_browser import BrowserCost
    from app.bench.debugger_live import LiveCost

SIZES = ["10000x5000"]
MIN_BLOCKS = 200
"""Minimum of --size; the longest request of a generated trace needs 169."""


def debugger(
    size: Annotated[list[str] | None, option("BLOCKSxSTEPS of a trace to make; repeatable.")] = None,
    trace: Annotated[list[Path] | None, option("An existing trace.", exists=True, dir_okay=False)] = None,
    seeks: Annotated[int, option("Jumps to random steps, for each figure.", min=1)] = 100,
    browser: Annotated[
        Path | None,
        option(
            "Time this trace in a real Chromium instead: first picture, jumps, playing.",
            exists=True,
            dir_okay=False,
            metavar="TRACE",
        ),
    ] = None,
    live: Annotated[
        bool, option("Time a running engine in the browser instead, and its pauses.", "--live")
    ] = False,
    json: JsonOption = False,
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
        from app.bench.debugger_live import measure_live

        return _in_chromium(measure_live, show_live, json, "prep app --page live", "the same by hand")
    if browser is not None:
        from app.bench.debugger_browser import measure_browser

        return _in_chromium(
            lambda tell: measure_browser(tell, browser),
            lambda cost: show_browser(cost, browser),
            json,
            f"prep app --trace {browser}",
            "the debugger itself",
        )
    from app.bench.debugger import measure

    sizes = [_parsed(text) for text in (size or ([] if trace else SIZES))]
    then = ("prep app", "the debugger itself")
    run(
        lambda tell: measure(tell, sizes, trace or [], seeks=seeks),
        show_debugger,
        json=json,
        then=then,
        takes="10 min",
    )


def _in_chromium(
    measure: Callable[[Tell], Any], show: Callable[[Any], None], json: bool, next_command: str, why: str
) -> None:
    try:
        run(measure, show, json=json, then=(next_command, why))
    except typer.Exit:  # a RuntimeError too
        raise
    except RuntimeError as error:
        raise terminal.Problem(str(error), code=terminal.ENVIRONMENT) from error


def show_browser(cost: BrowserCost, trace: Path) -> None:
    from app.bench.debugger_browser import RATE

    inside, anywhere = cost.jump_inside, cost.jump_anywhere
    rows = [
        ("block map after the address, fresh server", f"{cost.first_map_s:.2f} s"),
        ("the same in a second tab", f"{cost.next_map_s:.2f} s"),
        ("jump inside a window, median and max", f"{inside.p50:.1f} and {inside.max:.1f} ms"),
        ("jump anywhere, until the map is there", f"{anywhere.p50:.0f} and {anywhere.max:.0f} ms"),
        (
            f"playing {RATE} steps a second",
            f"{cost.frames_per_s:.0f} frames/s, {cost.steps_per_s:.0f} steps/s",
        ),
    ]
    terminal.show(f"the page Step in Chromium: {trace.name}", terminal.table("", "", rows=rows))


def show_live(cost: LiveCost) -> None:
    rows = [
        (f"steps shown per second, engine set to {cost.pace:.0f}", f"{cost.steps_shown_per_s:.1f}"),
        ("steps that the engine ran per second", f"{cost.engine_steps_per_s:.1f}"),
        ("click until the engine stops, median and max", _median_and_max(cost.pause_engine)),
        ("click until the page shows it, median and max", _median_and_max(cost.pause_shown)),
    ]
    terminal.show("a live engine in Chromium", terminal.table("", "", rows=rows))


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
    for trace in report.runs:
        seeks = (
            ("a jump to another window", trace.seek_window),
            ("a jump inside a window", trace.seek_details),
            ("everything about one step", trace.state),
        )
        rows = [
            ("requests, block events", f"{trace.requests:,}, {trace.block_events:,}"),
            ("open, empty cache", f"{trace.open_s:.2f} s"),
            ("open again", f"{trace.open_again_s:.2f} s"),
            ("first picture of a step", f"{1e3 * trace.first_parts_s:.0f} ms"),
            *(
                (f"{name}, median and p99", f"{times.p50:.0f} and {times.p99:.0f} ms")
                for name, times in seeks
            ),
            ("peak memory of the server", f"{trace.server_rss_mb:.0f} MB"),
            (
                "peak memory of the file reader",
                f"{trace.reader_rss_mb:.0f} MB" if trace.reader_rss_mb > 1 else "-",
            ),
        ]
        title = f"{trace.blocks:,} blocks x {counted(trace.steps, 'step')}: {trace.trace}, {trace.file_mb:,.1f} MB"
        terminal.show(title, terminal.table("", "", rows=rows))
        for warning in trace.warnings:
            terminal.err().print(f"[yellow]{terminal.literal(warning)}[/]")
