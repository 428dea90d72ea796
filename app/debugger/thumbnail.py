"""A run in one small picture: the lives of its requests in their colours, and the free blocks below.

waiting dotted, prefill a full bar, decode a lower one, preempted hatched; a triangle marks every preemption
"""

from __future__ import annotations

from base64 import b64encode
from html import escape

import numpy as np

from app.debugger.colours import PREEMPTED, REQUESTS
from app.debugger.trace_index import RequestSummary, TraceIndex
from app.debugger.views.phases import Phase, PhaseSpan, phases

WIDTH, LANE, CURVE = 320, 5, 16
MOST_LANES = 12
MOST_POINTS, MOST_MARKS = 120, 200
HEIGHTS: dict[Phase, float] = {"waiting": 1.0, "prefill": 4.0, "decode": 2.2, "preempted": 3.4}
STYLE = (
    ".f{fill:none;stroke:#9ca3af;stroke-width:1.2}.w{stroke-dasharray:1.5 2.5;stroke-width:1}"
    "@media(prefers-color-scheme:light){.f{stroke:#525d6c}}"
)
"""An image has no style of the page's, but its own for the system's theme."""


def thumbnail(index: TraceIndex, words: str, height: int) -> str:
    """The picture as an HTML image. words: its alternative text; height: pixels on the page."""
    shown = index.requests[:MOST_LANES]
    lanes = [part for row, request in enumerate(shown) for part in _lane(index, request, row)]
    marks = [
        f'<path d="M{_x(index, step + 0.5):.1f} {_bottom(len(shown)) + 1}l2.6 4.4h-5.2z" fill="{PREEMPTED}"/>'
        for step in index.event_steps("preempt")[:MOST_MARKS].tolist()
    ]
    total = _bottom(len(shown)) + 6 + CURVE
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" preserveAspectRatio="none">'
        f"<style>{STYLE}</style>{''.join(lanes)}{''.join(marks)}{_free_blocks(index, total)}</svg>"
    )
    source = f"data:image/svg+xml;base64,{b64encode(drawing.encode()).decode()}"
    style = f"width:100%;height:{height}px;background:var(--panel);border-radius:4px"
    return f'<img alt="{escape(words)}" style="{style}" src="{source}">'


def _bottom(num_lanes: int) -> int:
    return 3 + num_lanes * LANE


def _x(index: TraceIndex, step: float) -> float:
    return 2 + (WIDTH - 4) * step / max(1, index.num_steps)


def _lane(index: TraceIndex, request: RequestSummary, row: int) -> list[str]:
    colour = REQUESTS[index.colours[request.number]]
    middle = 3 + row * LANE + LANE / 2
    return [_bar(index, span, middle, colour) for span in phases(index, request)]


def _bar(index: TraceIndex, span: PhaseSpan, middle: float, colour: str) -> str:
    left, right = _x(index, span.first), _x(index, span.last + 1)
    if span.phase == "waiting":
        return f'<path class="w" d="M{left:.1f} {middle}H{right:.1f}" stroke="{colour}"/>'
    tall = HEIGHTS[span.phase]
    hollow = f'fill="{colour}" fill-opacity=".25" stroke="{colour}" stroke-width=".7"'
    paint = hollow if span.phase == "preempted" else f'fill="{colour}"'
    place = f'x="{left:.1f}" y="{middle - tall / 2:.1f}" width="{max(0.8, right - left):.1f}" height="{tall}"'
    return f"<rect {place} {paint}/>"


def _free_blocks(index: TraceIndex, total: int) -> str:
    """The minimum of free blocks in each part of the run as a curve; the bottom is none."""
    free = index.series.free_blocks
    parts = [part for part in np.array_split(free, min(len(free), MOST_POINTS) or 1) if len(part)]
    usable = max(1, index.num_blocks - 1)
    points = " ".join(
        f"{_x(index, (n + 0.5) * index.num_steps / len(parts)):.1f},{total - 1 - (CURVE - 3) * part.min() / usable:.1f}"
        for n, part in enumerate(parts)
    )
    return f'<polyline class="f" points="{points}"/>'
