"""The data of a whole run that pages need: figures per step, requests, events, and the state of each block.

`TraceIndex` takes them from a `TraceReader`, for small and live runs; `column_index` has the class for long ones.
Results are cached until the run grows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from app.debugger.request_colours import assign, colour_of
from app.debugger.trace_columns import FREE, states
from engine.core.sched_output import Reason
from engine.trace.blocks import BlockChanges as ReplayedChanges
from engine.trace.format import BLOCK_EVENTS
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.records import Event

BLOCK_STATES = ("free", "cached", "used", "shared")
"""Names of the states FREE, CACHED, USED and SHARED."""
KEYFRAME_EVENTS = 1 << 17
"""Block events between two cached maps of all blocks."""

Phase = Literal["waiting", "running", "preempted"]
T = TypeVar("T")


class Span(NamedTuple):
    """Consecutive steps after which a request was in one phase."""

    phase: Phase
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """One request, from arrival to end. Steps count from 0; None: it did not happen."""

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
    """From arrival to the end of the step that produced the first token."""
    latency_s: float | None


class Series(NamedTuple):
    """One entry per step; counts are those after the step."""

    time_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    num_tokens: NDArray[np.int32]
    running: NDArray[np.int32]
    waiting: NDArray[np.int32]
    free_blocks: NDArray[np.int32]
    cached_blocks: NDArray[np.int32]
    kv_tokens: NDArray[np.int64]


class BlockChanges(NamedTuple):
    """Block changes in steps [first, first + len(offsets) - 1): those of step first + k are the entries
    `offsets[k]` up to `offsets[k + 1]`. A block appears at most once per step, with its state after it."""

    first: int
    offsets: NDArray[np.uint32]
    block: NDArray[np.uint32]
    state: NDArray[np.uint8]
    """FREE, CACHED, USED or SHARED."""


class BlockEvents(NamedTuple):
    """Every block event up to the last step, in order."""

    start: NDArray[np.int64]
    """The events of step s are [start[s], start[s + 1])."""
    step: NDArray[np.int32]
    kind: NDArray[np.int8]
    """Index into BLOCK_EVENTS."""
    block: NDArray[np.int32]
    state: NDArray[np.uint8]
    """State of the block after the event."""


class TraceIndex:
    """A whole run, without its text."""

    def __init__(self, reader: Trace) -> None:
        self._reader = reader
        self.header, self.num_blocks, self.block_size = reader.header, reader.num_blocks, reader.block_size
        self._kept: dict[Any, Any] = {}
        self._kept_at = -1

    @property
    def num_steps(self) -> int:
        return self._reader.num_steps

    @property
    def series(self) -> Series:
        return self._keep("series", self._make_series)

    def _make_series(self) -> Series:
        series, steps = self._reader.series, self.num_steps
        return Series(*(np.array(getattr(series, name)[:steps]) for name in Series._fields))

    def counter_totals(self) -> dict[str, int]:
        """Sums of `stats.TRACED_COUNTERS` over all steps, by name; zeros are left out."""
        return self._keep("counters", self._reader.counter_totals)

    @property
    def requests(self) -> Sequence[RequestSummary]:
        """All requests in order of arrival."""
        return self._keep("requests", self._make_requests)

    def _make_requests(self) -> Sequence[RequestSummary]:
        return [_summary(self._reader, request) for request in self._reader.requests]

    @property
    def looks(self) -> list[int]:
        """Each request's look (`request_colours`), by its number."""
        return self._keep(
            "looks", lambda: assign((request.added, request.ended) for request in self.requests)
        )

    @property
    def colours(self) -> list[int]:
        """Each request's colour, an index into `colours.REQUESTS`, by its number."""
        return self._keep("colours", lambda: [colour_of(look) for look in self.looks])

    def spans(self, number: int) -> list[Span]:
        """A request's spans of waiting, running and being preempted."""
        added, ended, stays = self._life(number)
        last = self.num_steps - 1 if ended is None else min(ended, self.num_steps) - 1
        spans: list[Span] = []
        position = added
        phase: Phase = "waiting"
        for admitted, stay_left in stays:
            if admitted > position:
                spans.append(Span(phase, position, admitted - 1))
            left = last + 1 if stay_left is None else stay_left
            if left > admitted:
                spans.append(Span("running", admitted, left - 1))
            position, phase = left, "preempted"
        if position <= last:
            spans.append(Span(phase, position, last))
        return spans

    def _life(self, number: int) -> tuple[int, int | None, list[tuple[int, int | None]]]:
        """Arrival and end of a request, and (admitted, left) of each stay."""
        request = self._reader.requests[number]
        return request.added, request.ended, [(stay.admitted, stay.left) for stay in request.stays]

    def token_steps(self, number: int) -> NDArray[np.int32]:
        """The step of every output token of a request, in order; with accepted drafts a step appears repeatedly."""
        request = self._reader.requests[number]
        outputs = np.array([0, *request.row_outputs], np.int32)
        return np.repeat(np.array(request.row_steps, np.int32), outputs[1:] - outputs[:-1])

    def next_event(self, kind: str, step: int) -> Event | None:
        """The first event of a kind (`engine.trace.format`) after a step."""
        event = self._reader.next_event(kind, step)
        return None if event is None or event.step >= self.num_steps else event

    def event_steps(self, kind: str) -> NDArray[np.int32]:
        """The step of every event of a kind, in order, with repetitions."""
        return self._keep(("steps", kind), lambda: self._make_event_steps(kind))

    def _make_event_steps(self, kind: str) -> NDArray[np.int32]:
        if kind in BLOCK_EVENTS:
            return self._events.step[self._events.kind == BLOCK_EVENTS.index(kind)]
        steps = self._lifecycle_steps(kind)
        return steps[steps < self.num_steps]

    def _lifecycle_steps(self, kind: str) -> NDArray[np.int32]:
        return np.array([event.step for event in self._reader.events(kind)], np.int32)

    def reason_steps(self, reason: Reason) -> NDArray[np.int32]:
        """The steps in which a request was not scheduled for this reason, in order."""
        return self._keep(("reason", reason), lambda: np.array(self._reader.steps_with(reason), np.int32))

    def block_states(self, step: int) -> NDArray[np.uint8]:
        """The state of every block after a step, by block id; step -1: before the first."""
        if step >= self.num_steps:
            self._reader.blocks_at(step)  # raises with the range of steps
        events = self._events
        end = int(events.start[step + 1]) if step >= 0 else 0
        frame = end // KEYFRAME_EVENTS
        states = self._keep("keyframes", self._make_keyframes)[frame].copy()
        begin = frame * KEYFRAME_EVENTS
        states[events.block[begin:end]] = events.state[begin:end]  # the last change of a block wins
        return states

    def block_changes(self, first: int, last: int) -> BlockChanges:
        """The changes of steps first .. last - 1."""
        events = self._events
        begin, end = int(events.start[first]), int(events.start[last])
        order = np.argsort(events.block[begin:end], kind="stable")
        step, block = events.step[begin:end][order], events.block[begin:end][order]
        state = events.state[begin:end][order]
        is_last = np.ones(len(block), bool)
        is_last[:-1] = (block[1:] != block[:-1]) | (step[1:] != step[:-1])
        step, block, state = step[is_last], block[is_last], state[is_last]
        before = self.block_states(first - 1)[block]
        same = np.flatnonzero(block[1:] == block[:-1])
        before[same + 1] = state[same]
        changed = np.flatnonzero(state != before)
        changed = changed[np.argsort(step[changed], kind="stable")]
        offsets = np.searchsorted(step[changed], np.arange(first, last + 1))
        return BlockChanges(
            first, offsets.astype(np.uint32), block[changed].astype(np.uint32), state[changed]
        )

    def block_event_counts(self) -> NDArray[np.int64]:
        """Number of block events per step."""
        return np.diff(self._events.start)

    def _make_keyframes(self) -> list[NDArray[np.uint8]]:
        """The states before every KEYFRAME_EVENTS-th event."""
        events = self._events
        frames = [np.full(self.num_blocks, FREE, np.uint8)]
        for end in range(KEYFRAME_EVENTS, len(events.block) + 1, KEYFRAME_EVENTS):
            there = slice(end - KEYFRAME_EVENTS, end)
            frame = frames[-1].copy()
            frame[events.block[there]] = events.state[there]
            frames.append(frame)
        return frames

    @property
    def _events(self) -> BlockEvents:
        return self._keep("events", self._make_events)

    def _make_events(self) -> BlockEvents:
        changes = cast(ReplayedChanges, self._reader.changes)  # `ColumnIndex` has its own `_make_events`
        steps = self.num_steps
        step = np.array(changes.step[:], np.int32)
        start = np.searchsorted(step, np.arange(steps + 1))
        end = int(start[-1])
        ref, hashes = np.array(changes.after.ref[:end]), np.array(changes.after.hash[:end])
        return BlockEvents(
            start,
            step[:end],
            np.array(changes.kind[:end], np.int8),
            np.array(changes.block[:end], np.int32),
            states(ref, hashes != 0),
        )

    def _keep(self, name: Hashable, make: Callable[[], T]) -> T:
        """The cached result of `make`, unless the run has grown."""
        if self._kept_at != self._reader.num_lines:
            self._kept, self._kept_at = {}, self._reader.num_lines
        if name not in self._kept:
            self._kept[name] = make()
        return cast(T, self._kept[name])


def _summary(reader: Trace, request: RequestHistory) -> RequestSummary:
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
