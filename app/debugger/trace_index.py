"""What every page needs of a whole run: figures per step, requests, events, and the state of each block.

The index of a small run is made from a `TraceReader`, whose replay has everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.sched_output import Reason
from engine.core.trace_reader import TraceReader
from engine.core.trace_replay import RequestHistory

FREE, CACHED, USED, SHARED = range(4)
"""State of a block: nobody holds it; nobody does, but a prefix hit can; one request; several."""
BLOCK_STATES = ("free", "cached", "used", "shared")

Phase = Literal["waiting", "running", "preempted"]


class Span(NamedTuple):
    """Consecutive steps of a request's life. The state after each of them was this."""

    phase: Phase
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """One request, from arrival to end. Steps count from 0; None: it never came to that."""

    number: int
    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int
    added: int
    admitted: int | None
    first_token: int | None
    ended: int | None
    finish_reason: str | None
    priority: int
    lora: str | None
    added_s: float
    ttft_s: float | None
    """From arrival to the end of the step that gave the first token."""
    latency_s: float | None


class Series(NamedTuple):
    """One entry per step; counts are those after it."""

    time_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    num_tokens: NDArray[np.int32]
    running: NDArray[np.int32]
    waiting: NDArray[np.int32]
    free_blocks: NDArray[np.int32]
    cached_blocks: NDArray[np.int32]
    kv_tokens: NDArray[np.int64]


class BlockChanges(NamedTuple):
    """What changed in steps [first, first + len(offsets) - 1): entry `offsets[k]` up to `offsets[k + 1]` in step
    first + k. A block appears once per step at most, with its state after that step."""

    first: int
    offsets: NDArray[np.uint32]
    block: NDArray[np.uint32]
    state: NDArray[np.uint8]
    """FREE, CACHED, USED or SHARED."""


class EventPlace(NamedTuple):
    """An event in a run: where to jump, and whom it concerns."""

    step: int
    kind: str
    request_id: str | None
    block: int | None


class TraceIndex:
    """A whole run, without its text."""

    def __init__(self, reader: TraceReader) -> None:
        self._reader = reader

    @property
    def header(self) -> dict[str, Any]:
        return self._reader.header

    @property
    def num_steps(self) -> int:
        return self._reader.num_steps

    @property
    def num_blocks(self) -> int:
        return self._reader.num_blocks

    @property
    def block_size(self) -> int:
        return self._reader.block_size

    @property
    def series(self) -> Series:
        series = self._reader.series
        return Series(*(np.array(getattr(series, name)) for name in Series._fields))

    @property
    def requests(self) -> Sequence[RequestSummary]:
        """By number, in order of arrival."""
        return [_summary(self._reader, request) for request in self._reader.requests]

    def spans(self, number: int) -> list[Span]:
        """A request's life as waiting, running and preempted stretches."""
        request = self._reader.requests[number]
        last = self.num_steps - 1 if request.ended is None else min(request.ended, self.num_steps) - 1
        spans: list[Span] = []
        position, phase = request.added, "waiting"
        for stay in request.stays:
            if stay.admitted > position:
                spans.append(Span(phase, position, stay.admitted - 1))  # type: ignore[arg-type]
            left = last + 1 if stay.left is None else stay.left
            if left > stay.admitted:
                spans.append(Span("running", stay.admitted, left - 1))
            position, phase = left, "preempted"
        if position <= last:
            spans.append(Span(phase, position, last))  # type: ignore[arg-type]
        return spans

    def token_steps(self, number: int) -> NDArray[np.int32]:
        """The step of every output token of a request, in order: a step that accepted drafts appears as often."""
        request = self._reader.requests[number]
        outputs = np.diff(np.array(request.row_outputs, np.int32), prepend=0)
        return np.repeat(np.array(request.row_steps, np.int32), outputs)

    def counter_totals(self) -> dict[str, int]:
        """`stats.TRACED_COUNTERS` of all steps together, by name; those that stayed 0 are left out."""
        return self._reader.counter_totals()

    def next_event(self, kind: str, step: int) -> EventPlace | None:
        """The first event of a kind after a step (kinds: BLOCK_EVENTS and REQUEST_EVENTS of `trace_format`)."""
        event = self._reader.next_event(kind, step)
        return None if event is None else EventPlace(*event)

    def previous_event(self, kind: str, step: int) -> EventPlace | None:
        event = self._reader.previous_event(kind, step)
        return None if event is None else EventPlace(*event)

    def event_steps(self, kind: str) -> NDArray[np.int32]:
        """The step of every event of a kind, in order; a step with several appears as often."""
        return np.array([event.step for event in self._reader.events(kind)], np.int32)

    def reason_steps(self, reason: Reason) -> NDArray[np.int32]:
        """The steps in which the scheduler left a request out for this reason, in order."""
        return np.array(self._reader.steps_with(reason), np.int32)

    def block_states(self, step: int) -> NDArray[np.uint8]:
        """The state of every block after a step, by block id; step -1: before the first."""
        if step < 0:
            return np.full(self.num_blocks, FREE, np.uint8)
        blocks = self._reader.blocks_at(step)
        return states(np.array(blocks.ref), np.array(blocks.hash) != 0)

    def block_changes(self, first: int, last: int) -> BlockChanges:
        """The changes of steps first .. last - 1."""
        before = self.block_states(first - 1)
        offsets, changed, after = [0], [], []
        for step in range(first, last):
            now = self.block_states(step)
            where = np.flatnonzero(now != before)
            changed.append(where)
            after.append(now[where])
            offsets.append(offsets[-1] + len(where))
            before = now
        return BlockChanges(
            first,
            np.array(offsets, np.uint32),
            np.concatenate(changed or [np.empty(0)]).astype(np.uint32),
            np.concatenate(after or [np.empty(0)]).astype(np.uint8),
        )


def states(ref: NDArray[np.int32], hashed: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The state of blocks from reference counts and whether a hash is published."""
    idle = np.where(hashed, CACHED, FREE)
    return np.where(ref == 0, idle, np.where(ref == 1, USED, SHARED)).astype(np.uint8)


def _summary(reader: TraceReader, request: RequestHistory) -> RequestSummary:
    first = next((step for step, n in zip(request.row_steps, request.row_outputs, strict=True) if n), None)
    series = reader.series
    ttft = None if first is None else series.time_s[first] + series.duration_s[first] - request.added_s
    return RequestSummary(
        request.number,
        request.request_id,
        request.num_prompt_tokens,
        request.num_cached_tokens,
        len(request.tokens),
        len(request.preempted),
        request.added,
        request.stays[0].admitted if request.stays else None,
        first,
        request.ended,
        "abort" if request.aborted else request.finish_reason,
        request.record.get("priority", 0),
        request.record.get("lora"),
        request.added_s,
        ttft,
        None if request.ended_s is None else request.ended_s - request.added_s,
    )
