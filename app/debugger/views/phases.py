"""The phases of a request: it waits, prefills, decodes, or waits after a preemption.

    added        admitted              first token                       preempted       resumed      finished
      | waiting ... | prefill ... (incl.) | decode ......................... | preempted ... | prefill | decode |

A step belongs to the phase in which the request went through it, including the step in which it finishes. Prefill
lasts up to the step that produces the first token of a stay; after a preemption it is the recomputation.
"""

from __future__ import annotations

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
