"""The phases of a request, and a Gantt chart of them: it waits, prefills, decodes, or waits after a preemption.

    added        admitted              first token                       preempted       resumed      finished
      | waiting ... | prefill ... (incl.) | decode ......................... | preempted ... | prefill | decode |

A step belongs to the phase in which the request went through it, including the step in which it finishes. Prefill lasts
up to the step that produces the first token of a stay; after a preemption it is the recomputation.

A browser draws 3,000 bars without a pause. Beyond, the chart shows a window: the requests that lived in the chosen
steps, so many rows from a chosen one on. `phase_counts` draws the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.debugger.trace_index import RequestSummary, Span, TraceIndex

Phase = Literal["waiting", "prefill", "decode", "preempted"]
PHASES: tuple[Phase, ...] = ("waiting", "prefill", "decode", "preempted")
"""The phases in their usual order."""


class PhaseSpan(NamedTuple):
    """Consecutive steps, first and last included."""

    phase: Phase
    first: int
    last: int


def phases(index: TraceIndex, request: RequestSummary) -> list[PhaseSpan]:
    """A request's phases without gaps, up to its end or the end of the run."""
    tokens = index.token_steps(request.number)
    spans: list[PhaseSpan] = []
    for phase, first, last in _stays(index, request):
        if phase == "running":
            spans += _prefill_and_decode(first, last, tokens)
        else:
            spans.append(PhaseSpan(phase, first, last))
    return spans


def _stays(index: TraceIndex, request: RequestSummary) -> list[Span]:
    """The spans of `TraceIndex`, which give the state after each step, extended by the step in which a request
    finishes."""
    spans = index.spans(request.number)
    end = request.ended
    has_finished = request.admitted is not None and request.finish_reason != "abort"
    if has_finished and end is not None and end < index.num_steps:
        if spans and spans[-1].phase == "running":
            spans[-1] = spans[-1]._replace(last=end)
        else:
            spans.append(Span("running", end, end))
    return spans


def _prefill_and_decode(first: int, last: int, tokens: NDArray[np.int32]) -> list[PhaseSpan]:
    position = int(np.searchsorted(tokens, first))
    first_token = int(tokens[position]) if position < len(tokens) else last
    if first_token >= last:
        return [PhaseSpan("prefill", first, last)]
    return [PhaseSpan("prefill", first, first_token), PhaseSpan("decode", first_token + 1, last)]


def steps_in(spans: list[PhaseSpan], phase: Phase) -> int:
    """Number of steps of a request in a phase."""
    return sum(span.last - span.first + 1 for span in spans if span.phase == phase)


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


def window(num_steps: int, step: int, most: int) -> tuple[int, int]:
    """First and last step to show: all of a short run, else `most` of them around a step."""
    first = min(max(0, step - most // 2), max(0, num_steps - most))
    return first, max(0, min(num_steps, first + most) - 1)


def overlaps(spans: list[PhaseSpan], first: int, last: int) -> bool:
    return bool(spans) and spans[0].first <= last and spans[-1].last >= first


def phase_counts(lives: Sequence[list[PhaseSpan]], num_steps: int) -> dict[Phase, NDArray[np.int64]]:
    """Number of requests per step and phase."""
    edges = {phase: np.zeros(num_steps + 1, np.int64) for phase in PHASES}
    for phase, first, last in chain.from_iterable(lives):
        edges[phase][first] += 1
        edges[phase][last + 1] -= 1
    return {phase: np.cumsum(edge)[:num_steps] for phase, edge in edges.items()}
