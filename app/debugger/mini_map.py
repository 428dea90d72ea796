"""A small block map as an SVG, simpler than the canvas of the page Step."""

from __future__ import annotations

from base64 import b64encode
from html import escape

import numpy as np
from numpy.typing import NDArray

from app.debugger.colours import REQUESTS
from app.debugger.request_colours import colour_of, mark_of
from app.debugger.runs import Run
from app.debugger.trace_columns import CACHED, FREE, SHARED, USED
from app.debugger.trace_index import BLOCK_STATES

SIDE, GAP = 18, 3
MOST_OWNERS = 4
STYLE = (
    "text{font:8px monospace;fill:#fff}.back{fill:#0b1020;stroke:none}"
    "rect,path{stroke:#4b5563}.out{stroke:#fff;stroke-width:2.5}.hatch{stroke:#8593a8;stroke-width:3}"
    "@media(prefers-color-scheme:light){rect{stroke:#b4bdca}text{fill:#131c2b}.back{fill:#fff}.out{stroke:#131c2b}.hatch{stroke:#7b8796}}"
)
"""An image has no style of the page's, but its own for the system's theme."""


def owner_looks(run: Run, step: int) -> dict[int, list[int]]:
    """Block -> looks of the requests that hold it after a step."""
    reader, looks = run.reader(step), run.index.looks
    by_block: dict[int, list[int]] = {}
    for name, table in reader.state_at(step).block_tables.items():
        look = looks[reader.find(name, step).number]
        for block in table:
            by_block.setdefault(block, []).append(look)
    return by_block


def in_words(states: NDArray[np.uint8]) -> str:
    """The number of blocks in each state, without the null block."""
    counts = np.bincount(states[1:], minlength=len(BLOCK_STATES))
    return ", ".join(f"{counts[state]} {BLOCK_STATES[state]}" for state in (USED, SHARED, CACHED, FREE))


def mini_map(
    states: NDArray[np.uint8],
    owners: dict[int, list[int]],
    outlined: frozenset[int] = frozenset(),
    columns: int = 32,
    words: str = "",
) -> str:
    """An HTML image of all blocks except the null block, as on the page Step: in their owners' colours, with a number
    for the second request of a colour, cached ones hatched, free ones hollow. outlined: blocks with a frame; words:
    alternative text (by default the number of blocks in each state)."""
    pitch = SIDE + GAP
    columns = min(columns, max(1, len(states) - 1))
    rows = -(-(len(states) - 1) // columns)
    cells = [
        _cell(
            state, owners.get(block, []), (block - 1) % columns * pitch, (block - 1) // columns * pitch,
            block in outlined,
        )
        for block, state in enumerate(states[1:].tolist(), start=1)
    ]  # fmt: skip
    width, height = columns * pitch, rows * pitch
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {width} {height}"><style>{STYLE}</style>'
        f"{''.join(cells)}</svg>"
    )
    source = f"data:image/svg+xml;base64,{b64encode(drawing.encode()).decode()}"
    words = words or f"block map: {in_words(states)}"
    return f'<img alt="{escape(words)}" style="width:100%;max-width:{width * 1.3:.0f}px" src="{source}">'


def _mark(mark: str, left: float, bottom: int) -> str:
    if not mark:
        return ""
    back = f'<path class="back" d="M{left:.1f} {bottom}h{2 + 5 * len(mark)}v-9h-{2 + 5 * len(mark)}z"/>'
    return f'{back}<text x="{left + 1:.1f}" y="{bottom - 1}">{mark}</text>'


def _cell(state: int, owners: list[int], x: int, y: int, outlined: bool) -> str:
    shown = owners[:MOST_OWNERS]
    wide = SIDE / max(1, len(shown))
    stripes = [
        f'<path d="M{x + place * wide:.1f} {y}h{wide:.1f}v{SIDE}h-{wide:.1f}z" style="stroke:none" '
        f'fill="{REQUESTS[colour_of(look)]}"/>' + _mark(mark_of(look), x + place * wide, y + SIDE)
        for place, look in enumerate(shown)
    ]
    kind = "out" if outlined else "in"
    frame = f'<rect class="{kind}" x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="none"/>'
    hatch = f'<path class="hatch" d="M{x} {y + SIDE}L{x + SIDE} {y}"/>' if state == CACHED else ""
    return "".join([*stripes, frame, hatch])
