"""Draw the demo: a live block map on a terminal, one line per step elsewhere.

Letters carry the meaning and colour repeats it, so NO_COLOR and screen readers lose nothing.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from app.cli.demo.pool import BLOCK_SIZE, Event, Frame, Row, Tile
from app.cli.terminal import unicode_ok
from engine.core.sched_output import NotScheduled, Reason

WIDTH = 80
TILES_PER_ROW = 19
COLOURS = {
    "A": "#0087d7",
    "B": "#00875f",
    "C": "#af8700",
    "D": "#af5faf",
    "E": "#008787",
    "F": "#d75f00",
}
"""Colours of requests, legible on a dark and on a light terminal. Letters carry the meaning."""
AMBER = COLOURS["C"]
"""Instead of yellow, which cannot be read on white."""
EVENT_STYLE = {"hit": "bold green", "preempt": "bold red", "resume": f"bold {AMBER}", "finish": "dim"}
STATUS_STYLE = {
    "waiting": AMBER,
    "prefill": "bold",
    "decode": "bold",
    "preempted": "bold red",
    "done": "green",
}
WORDS = {
    Reason.BUDGET_EXHAUSTED: "this step's token budget is used up",
    Reason.MAX_NUM_SEQS: "max_num_seqs requests run",
    Reason.NO_BLOCKS: "blocks: needs {need}, free {free}",
    Reason.BEHIND_IN_QUEUE: "behind a request that cannot start",
    Reason.LOWER_PRIORITY: "lost its blocks to an older request",
    Reason.PREFIX_IN_FLIGHT: "another request computes its prefix right now",
    Reason.GRAMMAR_COMPILING: "the grammar of its output is being compiled",
    Reason.KV_TRANSFER: "its KV is being transferred",
    Reason.OTHER_BATCH: "another step under way computes it",
    Reason.NO_LORA_SLOT: "no slot is free for its adapter",
    Reason.PREEMPTING: "no request starts in a step that preempts",
}


def why(entry: NotScheduled) -> str:
    """Return a reason code in words, with its figures."""
    return WORDS[entry.reason].format_map(entry.details)


def race(runners: dict[str, tuple[int, float]], total: int) -> Table:
    """Draw generations side by side: name -> (tokens, seconds)."""
    full, empty = ("█", "·") if unicode_ok() else ("#", ".")
    table = Table.grid(padding=(0, 1))
    for name, (tokens, seconds) in runners.items():
        filled = round(36 * tokens / total)
        bar = Text(full * filled, style="green") + Text(empty * (36 - filled), style="dim")
        table.add_row(f"  {name:<14}", bar, f"{tokens:>3} tokens", f"{seconds:6.2f} s")
    return table


def picture(frame: Frame, events: list[tuple[int, Event]]) -> RenderableType:
    """Draw the whole live picture of part 2."""
    used, num_blocks = _num_used(frame), len(frame.tiles)
    head = Text.assemble(
        (f"{num_blocks} KV blocks of {BLOCK_SIZE} tokens", "bold"),
        f"   {used} in use, {num_blocks - used} free   ",
        (f"batch: {_batch(frame)}", "dim"),
    )
    tiles, rows = block_map(frame.tiles), requests(frame.rows)
    body = Group(head, Text(), tiles, Text(), legend(), Text(), rows, Text(), log(events))
    return Panel(body, title=f"step {frame.step}", title_align="left", width=WIDTH, border_style="dim")


def _num_used(frame: Frame) -> int:
    return sum(bool(tile.owners) for tile in frame.tiles)


def block_map(tiles: list[Tile]) -> Text:
    """Draw one tile per block in the order of ids; the letter is the owner."""
    text = Text(no_wrap=True)
    for index, tile in enumerate(tiles):
        if index and index % TILES_PER_ROW == 0:
            text.append("\n")
        text.append_text(_tile(tile))
        text.append(" ")
    return text


def _tile(tile: Tile) -> Text:
    if len(tile.owners) == 1:
        return Text(f" {tile.owners[0]} ", style=f"bold #101010 on {COLOURS[tile.owners[0]]}")
    if tile.owners:
        return Text(f"{''.join(tile.owners):^3.3}", style="bold reverse")
    if tile.is_cached:
        return Text(" ░ " if unicode_ok() else " o ", style="grey50")
    return Text(" · " if unicode_ok() else " . ", style="grey50")


def legend() -> Text:
    return Text.assemble(
        (" A ", f"bold #101010 on {COLOURS['A']}"),
        (" owner  ", "dim"),
        ("ABC", "bold reverse"),
        (" shared  ", "dim"),
        _tile(Tile((), True)),
        (" free, content kept  ", "dim"),
        _tile(Tile((), False)),
        (" free", "dim"),
    )


def requests(rows: list[Row]) -> Table:
    """Return a row for each request: status, progress of its KV, and its question, answer or reason to wait."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(width=9, no_wrap=True)
    table.add_column(width=7, justify="right", no_wrap=True)
    table.add_column(width=9, no_wrap=True)
    table.add_column(width=45, no_wrap=True, overflow="ellipsis")
    for row in rows:
        words = Text(row.text.replace("\n", " ")) if row.text else Text(row.question, style="dim italic")
        if row.reason is not None:
            words = Text(why(row.reason), style=AMBER)
        table.add_row(
            Text(row.name, style=f"bold {COLOURS[row.name]}"),
            Text(row.status, style=STATUS_STYLE[row.status]),
            f"{row.computed}/{row.known}",
            Text(f"hit {row.hit}" if row.hit else "", style="green"),
            words,
        )
    return table


def log(events: list[tuple[int, Event]], lines: int = 3) -> Text:
    """Draw the last events, newest last, at constant height."""
    text = Text()
    shown = events[-lines:]
    for step, event in shown:
        text.append(f"step {step:>2}  ", style="dim")
        text.append(event.text + "\n", style=EVENT_STYLE[event.kind])
    text.append("\n" * (lines - len(shown)))
    text.rstrip()
    return text


def line_of(frame: Frame) -> str:
    """Return a step as one plain line."""
    waits = [f"{row.name} {row.status}: {why(row.reason)}" for row in frame.rows if row.reason is not None]
    used = f"blocks {_num_used(frame)}/{len(frame.tiles)}"
    return "  ".join([f"step {frame.step:>2}", used, f"batch {_batch(frame)}", *waits])


def _batch(frame: Frame) -> str:
    return " ".join(f"{name}+{count}" for name, count in frame.batch) or "empty"
