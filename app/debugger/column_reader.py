"""`ColumnReader`: read a trace that is too long for memory.

A `TraceReader` replays the whole file and keeps its text, which takes seconds and gigabytes for a long run. A
`ColumnReader` keeps columns (`trace_columns`) and reads the line of a step on demand.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from app.debugger.trace_columns import NEVER, Columns
from app.debugger.trace_store import open_columns, text_limit
from app.debugger.trace_text import StepLines, first_line
from engine.core.sched_output import Reason
from engine.trace.blocks import NO_REQUEST, NULL_BLOCK, Blocks
from engine.trace.format import BLOCK_EVENTS, parse_line, read_header
from engine.trace.history import RequestHistory, Stay
from engine.trace.protocol import Trace
from engine.trace.records import Content, Event, StepSeries
from engine.trace.replay import Problem

KEPT_HISTORIES = 20_000


def read_columns(path: Path, max_text_bytes: int | None = None) -> ColumnReader:
    """Open a trace by its columns.

    Raises TraceError if the file is not a trace, ContradictionError if its records contradict each other.
    """
    header = first_line(path)
    read_header(header, path)  # raises before the columns are computed
    return ColumnReader(path, header, open_columns(path, max_text_bytes or text_limit()))


class ColumnReader(Trace):
    """Any step, any state, any event of a run, from its columns."""

    def __init__(self, path: Path, header: bytes, columns: Columns) -> None:
        self.path, self.header, self.columns = path, read_header(header, path), columns
        facts = columns.facts
        lines = StepLines(path, columns.line_member, columns.line_start)
        self.lines, self.num_lines = lines, len(lines)
        self.lifecycle = _Lifecycle(columns)
        self._positions_of: dict[str, Any] = {}
        self.requests = histories = _Histories(columns, lines)
        self.namesakes = _Namesakes(histories, facts["adds"])
        self.arrivals = _array("i", columns.added)
        self.changes = _Changes(
            columns.event_step, columns.event_kind, columns.event_request, columns.event_block
        )
        self.series = StepSeries()
        for name, column in vars(self.series).items():
            column.frombytes(getattr(columns, name).astype(column.typecode).tobytes())
        self.problems = [Problem(*problem) for problem in facts["problems"]]
        self.is_complete = facts["is_complete"]
        self.error = facts["errors"][-1][1] if facts["errors"] else None
        self.error_steps = [step for step, _ in facts["errors"]]
        self.notes = facts["notes"]
        self.warnings = []
        size = path.stat().st_size
        if facts["damage"] or facts["read_to"] >= size:
            self.warn_of_end(facts["damage"])
        else:
            self.warnings.append(
                f"this trace is very long: only the first {self.num_steps:,} steps (0 to {self.num_steps - 1:,}) are "
                f"shown, {facts['read_to'] / 1e6:,.0f} of the file's {size / 1e6:,.0f} MB. To see later steps, record "
                "a separate run from there"
            )

    def blocks_after(self, step: int) -> Blocks:
        return ColumnBlocks(self.columns, self.num_blocks, step)

    def live_after(self, step: int) -> list[RequestHistory]:
        return [self.requests[number] for number in self.columns.live_at(step).tolist()]

    def positions(self, kind: str) -> Any:
        if kind not in self._positions_of:
            positions = np.flatnonzero(self.columns.event_kind == BLOCK_EVENTS.index(kind))
            self._positions_of[kind] = positions.astype(np.int32)
        return self._positions_of[kind]

    def counter_totals(self) -> dict[str, int]:
        return dict(self.columns.facts["counters"])

    def steps_with(self, reason: Reason) -> list[int]:
        return list(self.columns.facts["reasons"].get(reason.value, ()))

    def content_before(self, block: int, step: int) -> Content | None:
        columns = self.columns
        seals = np.flatnonzero(columns.sealed_block[: columns.sealed_start[step]] == block)
        if not len(seals):
            return None
        seal = seals[-1]
        request = int(columns.event_request[columns.sealed_from[seal]])
        return Content(request, columns.sealed_hash[seal].tobytes().hex())


class ColumnBlocks(Blocks):
    """All blocks after a step."""

    def __init__(self, columns: Columns, num_blocks: int, step: int) -> None:
        self._columns = columns
        self._num_blocks = num_blocks
        self._step = step
        self._position = columns.position_after(step)
        """Number of block events up to the end of the step."""

    @cached_property
    def _holding(self) -> tuple[Any, Any]:
        """Held blocks and their requests, in the order of allocation."""
        columns = self._columns
        held = np.flatnonzero(columns.held_to[: columns.held_start[self._step + 1]] >= self._position)
        return columns.held_block[held], columns.held_request[held]

    @cached_property
    def ref(self) -> array[int]:
        return _array("i", np.bincount(self._holding[0], minlength=self._num_blocks))

    @cached_property
    def owner(self) -> array[int]:
        blocks, requests = self._holding
        owner = np.full(self._num_blocks, NO_REQUEST, np.int32)
        owner[blocks[::-1]] = requests[::-1]  # the first of several holders wins
        return _array("i", owner)

    @cached_property
    def hash(self) -> array[int]:
        columns = self._columns
        there = columns.sealed_to[: columns.sealed_start[self._step + 1]] >= self._position
        published = np.flatnonzero(there)
        hashes = np.zeros(self._num_blocks, np.uint64)
        hashes[columns.sealed_block[published]] = columns.sealed_hash[published]
        return _array("Q", hashes)

    def free_queue(self) -> list[int]:
        columns = self._columns
        num_freed = columns.freed_start[self._step + 1]
        rank = np.arange(self._num_blocks)
        rank[columns.freed_block[:num_freed]] = columns.freed_rank[:num_freed]
        is_free = np.bincount(self._holding[0], minlength=self._num_blocks) == 0
        is_free[NULL_BLOCK] = False
        free = np.flatnonzero(is_free)
        queue: list[int] = free[np.argsort(rank[free])].tolist()
        return queue


@dataclass(frozen=True)
class _Changes:
    """Every block event, by position."""

    step: Any
    kind: Any
    request: Any
    block: Any

    def __len__(self) -> int:
        return len(self.block)


class _Lifecycle(dict[str, list[Event]]):
    """Kind -> events of requests, computed on first use."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __missing__(self, kind: str) -> list[Event]:
        adds = self._columns.facts["adds"]
        steps, numbers = lifecycle(self._columns, kind)
        events = zip(steps.tolist(), numbers.tolist(), strict=True)
        self[kind] = [Event(step, kind, adds[number]["r"], None) for step, number in events]
        return self[kind]


def lifecycle(columns: Columns, kind: str) -> tuple[Any, Any]:
    """Steps and request numbers of the events of a kind in REQUEST_EVENTS."""
    if kind == "add":
        return columns.added, np.arange(len(columns.added))
    if kind == "abort":
        places = np.array([(abort["i"], abort["q"]) for abort in columns.facts["aborts"]], np.int32)
        return places.reshape(-1, 2)[:, 0], places.reshape(-1, 2)[:, 1]
    if kind == "preempt":
        return columns.preempt_step, columns.preempt_request
    if kind == "finish":
        return columns.finish_step, columns.finish_request
    if kind == "hit":
        meant = columns.admission_first > 0
    else:
        meant = columns.admission_is_resumption == (kind == "resume")
    return columns.admission_step[meant], columns.admission_request[meant]


class _Histories(Sequence[RequestHistory]):
    """Requests by number, each created on demand."""

    def __init__(self, columns: Columns, lines: StepLines) -> None:
        self._columns = columns
        self._lines = lines
        self._made: OrderedDict[int, RequestHistory] = OrderedDict()
        self._rekeyed: dict[int, list[tuple[int, tuple[float, ...]]]] = {}
        for step, number, key in columns.facts["rekeyed"]:
            self._rekeyed.setdefault(number, []).append((step, tuple(key)))
        aborts = columns.facts["aborts"]
        self._late = {record["q"] for record in aborts if record.get("late", False)}
        self._abort_order = {record["q"]: order for order, record in enumerate(aborts)}

    def __len__(self) -> int:
        return len(self._columns.added)

    @overload
    def __getitem__(self, index: int) -> RequestHistory: ...
    @overload
    def __getitem__(self, index: slice) -> list[RequestHistory]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        history = self._made.get(index)  # called tens of thousands of times per picture
        if history is None:
            number = range(len(self))[index]
            history = self._made[number] = self._made.get(number) or self._make(number)
            if len(self._made) > KEPT_HISTORIES:
                self._made.popitem(last=False)
        return history

    def _make(self, number: int) -> RequestHistory:
        columns, add = self._columns, self._columns.facts["adds"][number]
        rows = slice(columns.row_start[number], columns.row_start[number + 1])
        computed = _array("i", columns.row_computed[rows])
        ended = int(columns.ended[number])
        return RequestHistory(
            number=number,
            request_id=add["r"],
            key=tuple(add["key"]),
            record=_AddRecord(add, self._lines),
            num_prompt_tokens=add["num_prompt_tokens"],
            added=add["i"],
            added_s=add["ts"],
            ended=None if ended == NEVER else ended,
            ended_s=None if ended == NEVER else float(columns.ended_s[number]),
            finish_reason=columns.facts["finish_reasons"][number],
            aborted=bool(columns.aborted[number]),
            aborted_late=number in self._late,
            abort_order=self._abort_order.get(number, 0),
            rekeyed=self._rekeyed.get(number, []),
            stays=self._stays(number),
            preempted=columns.preempt_step[columns.preempt_request == number].tolist(),
            num_computed=computed[-1] if computed else 0,
            tokens=_array("i", columns.token[columns.token_start[number] : columns.token_start[number + 1]]),
            row_steps=_array("i", columns.row_step[rows]),
            row_computed=computed,
            row_outputs=_array("i", columns.row_outputs[rows]),
        )

    def _stays(self, number: int) -> list[Stay]:
        columns = self._columns
        first, last = columns.stay_start[number], columns.stay_start[number + 1]
        if first == last:
            return []
        blocks, block_steps = self._taken(number)
        slides = slice(columns.slide_start[number], columns.slide_start[number + 1])
        slide_step, slide_behind = columns.slide_step[slides], columns.slide_behind[slides]
        stays = []
        for stay in range(first, last):
            admitted, left = int(columns.stay_admitted[stay]), int(columns.stay_left[stay])
            ran_to = columns.num_steps if left == NEVER else left
            if columns.aborted[number] and left == columns.ended[number]:
                ran_to -= 1  # blocks that a step in flight allocated for it are in no table
            taken = slice(*np.searchsorted(block_steps, [admitted, ran_to + 1]))
            slid = slice(*np.searchsorted(slide_step, [admitted, ran_to + 1]))
            behind = int(columns.stay_behind[stay])
            stays.append(
                Stay(
                    admitted,
                    int(columns.stay_first[stay]),
                    None if left == NEVER else left,
                    [NULL_BLOCK] * behind + blocks[taken].tolist(),
                    [admitted] * behind + block_steps[taken].tolist(),
                    list(zip(slide_step[slid].tolist(), slide_behind[slid].tolist(), strict=True)),
                )
            )
        return stays

    def _taken(self, number: int) -> tuple[Any, Any]:
        """The blocks that a request allocated, in order, and their steps."""
        columns = self._columns
        ended = int(columns.ended[number])
        last = columns.num_steps if ended == NEVER else min(ended + 1, columns.num_steps)
        first, last = columns.held_start[[int(columns.added[number]), last]]
        taken = first + np.flatnonzero(columns.held_request[first:last] == number)
        return columns.held_block[taken], columns.event_step[columns.held_from[taken]]


class _AddRecord(dict[str, Any]):
    """The `add` record of a request; its prompt is read from the file on demand."""

    def __init__(self, add: dict[str, Any], lines: StepLines) -> None:
        super().__init__(add)
        del self["num_prompt_tokens"]
        self._place, self._lines = self.pop("place"), lines

    def __missing__(self, name: str) -> Any:
        if name != "prompt":
            raise KeyError(name)
        self["prompt"] = parse_line(self._lines.line_at(*self._place))["prompt"]
        return self["prompt"]


class _Namesakes(Mapping[str, list[RequestHistory]]):
    """Request id -> the requests that had it, in order."""

    def __init__(self, histories: _Histories, adds: list[dict[str, Any]]) -> None:
        self._histories = histories
        self._numbers: dict[str, list[int]] = {}
        for number, add in enumerate(adds):
            self._numbers.setdefault(add["r"], []).append(number)

    def __getitem__(self, name: str) -> list[RequestHistory]:
        return [self._histories[number] for number in self._numbers[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _array(code: str, values: Any) -> array[Any]:
    """Convert a numpy column to an `array.array`, as a TraceReader has."""
    column: array[Any] = array(code)
    column.frombytes(values.astype(np.dtype(code), copy=False).tobytes())
    return column
