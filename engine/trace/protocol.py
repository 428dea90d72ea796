"""The questions that every reader of a trace answers.

trace.header["model"], trace.num_steps, trace.warnings, trace.problems
trace.step(418)                    # what was scheduled, sampled and refused      StepRecord
trace.state_at(418)                # blocks, tables, queues after step 418        TraceState
trace.reasons(418)                 # why others were not scheduled                list[NotScheduled]
trace.next_event("preempt", 418)   # the first one after step 418                 Event | None
"""

from __future__ import annotations

import json
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from engine.core.sched_output import NotScheduled, Reason
from engine.trace.blocks import NO_REQUEST, Blocks
from engine.trace.format import BLOCK_EVENTS, REQUEST_EVENTS, TraceError, parse_line
from engine.trace.history import RequestHistory
from engine.trace.records import Content, Event, Row, StepRecord, StepSeries, TraceState, accepted_tokens
from engine.trace.replay import Problem
from prep_common.names import unknown_name


class Trace(Protocol):
    """A recorded run. A reader implements the abstract methods; the others are derived from them.

    Everything is read-only and may be shared between threads.
    """

    path: Path
    header: dict[str, Any]
    warnings: list[str]  # sentences about what is missing from the file; empty for a complete one
    problems: list[Problem]  # contradictions among the records or with the checks; empty for a sound trace
    is_complete: bool  # the writer was closed: nothing is missing at the end
    error: str | None  # the last exception of the engine
    error_steps: list[int]  # steps that raised; after all but the last the engine went on, without requests
    notes: list[str]  # sentences of the writer about the run as a whole
    series: StepSeries
    requests: Sequence[RequestHistory]  # in order of arrival: the index is the number; an id may appear again
    arrivals: Sequence[int]  # per request, `RequestHistory.added`
    changes: Any
    """Every block event of a run, in order, as columns (`array.array` or numpy) of `blocks.BlockChanges`: `step`,
    `kind`, `request`, `block`. It has a length."""
    num_lines: int  # lines read so far; it grows with a live trace
    lines: Sequence[bytes]  # per step, its line in the file
    lifecycle: Mapping[str, Sequence[Event]]  # kind in REQUEST_EVENTS -> all its events
    namesakes: Mapping[str, list[RequestHistory]]  # id -> the requests that had it, in order of arrival
    _last_parsed: tuple[int, dict[str, Any]] = (-1, {})

    @abstractmethod
    def blocks_after(self, step: int) -> Blocks:
        """All blocks after a step that exists."""

    @abstractmethod
    def live_after(self, step: int) -> list[RequestHistory]:
        """The requests that run or wait after a step."""

    @abstractmethod
    def positions(self, kind: str) -> Any:
        """Indices into `changes` of a kind in BLOCK_EVENTS, as an array of int."""

    @abstractmethod
    def content_before(self, block: int, step: int) -> Content | None:
        """The last published content of a block before a step; None if there was none."""

    @abstractmethod
    def counter_totals(self) -> dict[str, int]:
        """Sums of the steps' counters, by name; zeros are left out."""

    @abstractmethod
    def steps_with(self, reason: Reason) -> list[int]:
        """The steps in which a request was not scheduled for this reason."""

    # ------------------------------------------------------------------ overview

    @property
    def num_steps(self) -> int:
        return len(self.lines)

    @property
    def num_blocks(self) -> int:
        return int(self.header["blocks"])

    @property
    def block_size(self) -> int:
        return int(self.header["block_size"])

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning of the trace to the end of its last step."""
        return self.series.time_s[-1] + self.series.duration_s[-1] if self.num_steps else 0.0

    @property
    def workload_hash(self) -> str:
        """Hash of the requests: equal for two runs of the same workload, whatever the engine's settings."""
        digest = sha256()
        for request in self.requests:
            names = ("prompt", "params", "priority", "seed", "lora", "salt")
            work = {name: request.record[name] for name in names}
            digest.update(json.dumps(work, separators=(",", ":")).encode())
        return digest.hexdigest()

    def warn_of_end(self, damage: str) -> None:
        """Add warnings about the end of the file. `damage`: how the file is damaged, or empty."""
        if self.error is not None:
            self.warnings.append(f"the engine raised {self.error}")
        if damage:
            self.warnings.append(f"the file is {damage}; read to the last whole record")
            message = f"the file is {damage}: the steps after {self.num_steps - 1} are lost"
            self.problems.append(Problem(self.num_steps, message))
        elif not (self.is_complete or self.error or self.problems):
            self.warnings.append(
                "there is no end record: the engine was killed or still runs; read to its last flush"
            )

    # ------------------------------------------------------------------ one step

    def record(self, step: int) -> dict[str, Any]:
        """The step's line in the file, parsed (`engine.trace.format`). Raises TraceError without such a step."""
        self._check_step(step)
        last, record = self._last_parsed  # one assignment, because threads share a reader
        if last != step:
            record = parse_line(self.lines[step])
            self._last_parsed = step, record
        return record

    def step(self, step: int) -> StepRecord:
        """One step, with request ids instead of numbers."""
        record = self.record(step)
        arrived = range(bisect_left(self.arrivals, step), bisect_right(self.arrivals, step))
        rows = zip(record.get("q", ()), record.get("n", ()), record.get("tok", ()), strict=True)
        return StepRecord(
            step=step,
            time_s=record["ts"],
            duration_s=record["dur"],
            rows=[self._row(step, *row) for row in rows],
            admitted=[self._name(number) for number, *_ in record.get("new", ())],
            resumed=[self._name(number) for number, *_ in record.get("res", ())],
            preempted=[self._name(number) for number in record.get("pre", ())],
            finished=[(self._name(number), reason) for number, reason in record.get("fin", ())],
            added=[self._name(number) for number in arrived],
            aborted=[str(event.request_id) for event in self.lifecycle_at("abort", step)],
            num_running=record["run"],
            num_waiting=record["wait"],
            num_free_blocks=record["free"],
            num_cached_blocks=record["cached"],
            num_kv_tokens=record["kv"],
            not_scheduled=self.reasons(step),
            counters=record.get("cnt", {}),
            copy_out=[(device, host) for device, host in record.get("out", ())],
            copy_in=[(host, device) for host, device in record.get("in", ())],
        )

    def reasons(self, step: int) -> list[NotScheduled]:
        """Reason why requests were not scheduled; an entry for `None` stands for every waiting request not named."""
        return [
            NotScheduled(None if number is None else self._name(number), Reason(reason), details)
            for number, reason, details in self.record(step).get("why", ())
        ]

    def _check_step(self, step: int) -> None:
        if not 0 <= step < self.num_steps:
            last = f"0 to {self.num_steps - 1}" if self.num_steps else "no steps at all"
            raise TraceError(f"{self.path.name} has no step {step}: it holds {last}")

    def _name(self, number: int) -> str:
        return self.requests[number].request_id

    def _row(self, step: int, number: int, num_tokens: int, tokens: int | list[int] | None) -> Row:
        request = self.requests[number]
        start, num_outputs = request.position_before(step), request.num_outputs_at(step - 1)
        is_decode = num_outputs > 0 and start == request.num_prompt_tokens + num_outputs - 1
        phase = "decode" if is_decode else "prefill"
        return Row(request.request_id, start, num_tokens, phase, accepted_tokens(tokens))

    # ------------------------------------------------------------------ states

    def blocks_at(self, step: int) -> Blocks:
        """All blocks after a step. Raises TraceError without such a step."""
        self._check_step(step)
        return self.blocks_after(step)

    def state_at(self, step: int) -> TraceState:
        """The whole state after a step. Raises TraceError without such a step."""
        blocks, live = self.blocks_at(step), self.live_after(step)
        return TraceState(step, blocks, sorted(live, key=lambda request: request.key_at(step)))

    # ------------------------------------------------------------------ events

    def events(self, kind: str) -> list[Event]:
        """All events of a kind, in order. Raises TraceError for an unknown kind."""
        entries, _, event = self._of_kind(kind)
        return [event(entry) for entry in entries]

    def next_event(self, kind: str, step: int) -> Event | None:
        """The first event of a kind after a step."""
        entries, step_of, event = self._of_kind(kind)
        index = bisect_right(entries, step, key=step_of)
        return event(entries[index]) if index < len(entries) else None

    def block_events_at(self, step: int) -> list[Event]:
        """The block events of one step, in order."""
        steps = self.changes.step
        return [self._block_event(n) for n in range(bisect_left(steps, step), bisect_right(steps, step))]

    def lifecycle_at(self, kind: str, step: int) -> list[Event]:
        """The events of one step, of a kind in REQUEST_EVENTS."""
        events, step_of, _ = self._of_kind(kind)
        return list(events[bisect_left(events, step, key=step_of) : bisect_right(events, step, key=step_of)])

    def _of_kind(self, kind: str) -> tuple[Any, Callable[[Any], int], Callable[[Any], Event]]:
        """The entries of a kind in order, and functions from an entry to its step and to the event."""
        if kind in REQUEST_EVENTS:
            return self.lifecycle[kind], itemgetter(0), lambda event: event
        if kind not in BLOCK_EVENTS:
            raise TraceError(f"no event kind {kind!r}: {', '.join((*REQUEST_EVENTS, *BLOCK_EVENTS))}")
        return self.positions(kind), self.changes.step.__getitem__, self._block_event

    def _block_event(self, position: int) -> Event:
        changes = self.changes
        number, kind = changes.request[position], BLOCK_EVENTS[changes.kind[position]]
        request_id = None if number == NO_REQUEST else self._name(number)
        return Event(int(changes.step[position]), kind, request_id, int(changes.block[position]))

    # ------------------------------------------------------------------ requests

    def find(self, request_id: str, step: int | None = None) -> RequestHistory:
        """A request by name; of several with that name, the last that had arrived at `step`.

        Raises TraceError with a similar name if there is none.
        """
        namesakes = self.namesakes.get(request_id)
        if not namesakes:
            where = f"`prep trace info {self.path}` lists them"
            if len(self.namesakes) <= 10:
                where = f"it has: {', '.join(self.namesakes)}"
            known = list(self.namesakes)[:10_000]
            raise TraceError(unknown_name(f"{self.path.name} has no request", request_id, known, where))
        arrived = [request for request in namesakes if step is None or request.added <= step]
        return arrived[-1] if arrived else namesakes[0]

    def tokens(self, request_id: str) -> list[tuple[int, int]]:
        """The output of a request: (step, token id), in order."""
        request = self.find(request_id)
        tokens: list[tuple[int, int]] = []
        for step, num_outputs in zip(request.row_steps, request.row_outputs, strict=True):
            tokens += [(step, token) for token in request.tokens[len(tokens) : num_outputs]]
        return tokens
