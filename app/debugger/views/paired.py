"""The lives of the requests of two runs in pairs, and the stretches of steps in which they differ.

    eve   A  prefill decode ........ preempted prefill decode ..
          B  prefill decode ................................
                              ^^^^^^^ phase         ^^^^ work

A stretch differs in phase if the request is in another phase, or in the run alone; it differs in work if the phase is
the same and the step computes other tokens, or preempts with other copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.debugger.trace_index import TraceIndex
from app.debugger.views.phases import PHASES, PhaseSpan, phases
from engine.trace.diff import RequestDelta
from engine.trace.protocol import Trace
from engine.trace.run_totals import keys_of

NAMES = (*PHASES, "absent")
"""Phases by their code; absent: the request is not in the run in that step."""

Kind = Literal["phase", "work"]


class Stretch(NamedTuple):
    """Consecutive steps, first and last included, in which two runs differ in one way."""

    kind: Kind
    first: int
    last: int
    a: str
    """The phase in A, or absent."""
    b: str


@dataclass(frozen=True)
class Pair:
    """One request in both runs."""

    delta: RequestDelta
    colour: int
    lives: tuple[list[PhaseSpan], list[PhaseSpan]]
    """Its phases in A and in B; empty if it is not in that run."""
    stretches: list[Stretch]

    @property
    def last(self) -> int:
        """The last step of either life; -1 if both are empty."""
        return max((spans[-1].last for spans in self.lives if spans), default=-1)

    @property
    def first(self) -> int:
        return min((spans[0].first for spans in self.lives if spans), default=0)


def pairs(
    deltas: Sequence[RequestDelta], runs: tuple[tuple[Trace, TraceIndex], tuple[Trace, TraceIndex]]
) -> list[Pair]:
    """The pairs in the order of `deltas`."""
    numbers = [{key: number for number, key in enumerate(keys_of(reader))} for reader, _ in runs]
    paired = []
    for delta in deltas:
        lives, colour = [], 0
        for (_, index), known in reversed(list(zip(runs, numbers, strict=True))):
            number = known.get(delta.request_id)
            if number is not None:
                colour = index.colours[number]
            lives.append([] if number is None else phases(index, index.requests[number]))
        b, a = lives
        paired.append(Pair(delta, colour, (a, b), stretches(a, b, delta.different_steps)))
    return paired


def stretches(a: list[PhaseSpan], b: list[PhaseSpan], work: Sequence[tuple[int, int]]) -> list[Stretch]:
    """The stretches in which two lives differ. work: (first, last) of the steps with other work."""
    ends = [spans[-1].last for spans in (a, b) if spans] + [last for _, last in work]
    if not ends:
        return []
    one, other = (phase_codes(spans, max(ends) + 1) for spans in (a, b))
    differ = one != other
    for first, last in work:
        differ[first : last + 1] = True
    ways = np.where(differ, 1 + one * len(NAMES) + other, 0)
    edges = np.flatnonzero(np.diff(ways, prepend=0, append=0)).tolist()
    parts = []
    for first, end in pairwise(edges):
        if ways[first]:
            phase_a, phase_b = NAMES[one[first]], NAMES[other[first]]
            parts.append(Stretch("work" if phase_a == phase_b else "phase", first, end - 1, phase_a, phase_b))
    return parts


def phase_codes(spans: Sequence[PhaseSpan], num_steps: int) -> NDArray[np.int64]:
    """Per step, an index into NAMES."""
    codes = np.full(num_steps, len(PHASES), np.int64)
    for phase, first, last in spans:
        codes[first : last + 1] = PHASES.index(phase)
    return codes


def fitting(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """The leading pairs, at least one, that have at most so many bars and stretches together."""
    totals = accumulate(sum(map(len, pair.lives)) + len(pair.stretches) for pair in pairs)
    return [pair for pair, total in zip(pairs, totals, strict=True) if total <= most] or list(pairs[:1])
