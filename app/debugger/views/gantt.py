"""Bars of a Gantt chart: one row per request, one bar per phase; few enough for a browser.

A browser draws 3,000 bars without a pause. Beyond, the chart shows a window: the requests that lived in the chosen
steps, so many rows from a chosen one on. What is outside is counted, and `phase_counts` draws the whole run as the
number of requests in each phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.debugger.views.phases import PHASES, Phase, PhaseSpan

MAX_BARS = 3000
MAX_ROWS = 60


class Bar(NamedTuple):
    row: int
    """Row on the chart; 0 is the top one."""
    number: int
    """Number of the request."""
    phase: Phase
    first: int
    last: int
    """Steps, both included, cut to the window."""


@dataclass(frozen=True)
class Gantt:
    first: int
    last: int
    """Steps shown, both included."""
    numbers: list[int]
    """The request in each row."""
    bars: list[Bar]
    num_in_window: int
    """Requests with steps in the window, shown or not."""


def gantt(
    lives: Sequence[tuple[int, list[PhaseSpan]]], first: int, last: int, skip: int = 0, rows: int = MAX_ROWS
) -> Gantt:
    """The bars of steps first .. last. `lives` gives (request number, phases) in the order of the rows; the first
    `skip` requests of the window are left out, and rows end before the maximum number of bars."""
    living = [(number, spans) for number, spans in lives if overlaps(spans, first, last)]
    numbers: list[int] = []
    bars: list[Bar] = []
    for number, spans in living[skip : skip + rows]:
        cut = [span for span in spans if span.last >= first and span.first <= last]
        if bars and len(bars) + len(cut) > MAX_BARS:
            break
        row = len(numbers)
        bars += [
            Bar(row, number, span.phase, max(span.first, first), min(span.last, last))
            for span in cut[:MAX_BARS]
        ]
        numbers.append(number)
    return Gantt(first, last, numbers, bars, len(living))


def overlaps(spans: list[PhaseSpan], first: int, last: int) -> bool:
    return bool(spans) and spans[0].first <= last and spans[-1].last >= first


def phase_counts(lives: Sequence[list[PhaseSpan]], num_steps: int) -> dict[Phase, NDArray[np.int64]]:
    """Number of requests per step and phase."""
    edges = {phase: np.zeros(num_steps + 1, np.int64) for phase in PHASES}
    for phase, first, last in chain.from_iterable(lives):
        edges[phase][first] += 1
        edges[phase][last + 1] -= 1
    return {phase: np.cumsum(edge)[:num_steps] for phase, edge in edges.items()}
