"""A small block map as an SVG, simpler than the canvas of the page Step."""

from __future__ import annotations

from base64 import b64encode
from html import escape

import numpy as np
from numpy.typing import NDArray

from app.debugger import colours
from app.debugger.trace_columns import CACHED, FREE, SHARED, USED
from app.debugger.trace_index import BLOCK_STATES

COLOURS = {USED: colours.USED, SHARED: colours.SHARED, CACHED: colours.CACHED}
"""As on the page Step. Free blocks are hollow, shared ones have a dot, cached ones a stripe, so that colour is not
needed to tell them apart."""
SIDE, GAP = 18, 3


def in_words(states: NDArray[np.uint8]) -> str:
    """The number of blocks in each state, without the null block."""
    counts = np.bincount(states[1:], minlength=len(BLOCK_STATES))
    return ", ".join(f"{counts[state]} {BLOCK_STATES[state]}" for state in (USED, SHARED, CACHED, FREE))


def mini_map(
    states: NDArray[np.uint8], outlined: frozenset[int] = frozenset(), columns: int = 32, words: str = ""
) -> str:
    """An HTML image of all blocks except the null block. outlined: blocks with a white frame; words: alternative text
    (by default the number of blocks in each state)."""
    pitch = SIDE + GAP
    columns = min(columns, max(1, len(states) - 1))
    rows = -(-(len(states) - 1) // columns)
    cells = [
        _cell(state, (place % columns) * pitch, place // columns * pitch, place + 1 in outlined)
        for place, state in enumerate(states[1:].tolist())
    ]
    width, height = columns * pitch, rows * pitch
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {width} {height}">{"".join(cells)}</svg>'
    )
    source = f"data:image/svg+xml;base64,{b64encode(drawing.encode()).decode()}"
    words = words or f"block map: {in_words(states)}"
    return f'<img alt="{escape(words)}" style="width:100%;max-width:{width * 1.3:.0f}px" src="{source}">'


def _cell(state: int, x: int, y: int, outlined: bool) -> str:
    frame = ' stroke="#ffffff" stroke-width="2"' if outlined else ' stroke="#4b5563"'
    fill = COLOURS.get(state, "none")
    cell = f'<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="{fill}"{frame}/>'
    if state == SHARED:
        cell += f'<circle cx="{x + SIDE / 2}" cy="{y + SIDE / 2}" r="3" fill="#111827"/>'
    elif state == CACHED:
        cell += f'<path d="M{x} {y + SIDE}L{x + SIDE} {y}" stroke="#111827" stroke-width="3"/>'
    return cell
