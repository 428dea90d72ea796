"""Reading a step trace: any step, any state, any event, by number (format: `trace_format`).

    reader = TraceReader("run.itrace")
    reader.header["model"], reader.num_steps, reader.warnings, reader.problems
    reader.step(418)                    # what was scheduled, sampled and refused      StepRecord
    reader.state_at(418)                # blocks, tables, queues after step 418        TraceState
    reader.reasons(418)                 # why others were not scheduled                list[NotScheduled]
    reader.next_event("preempt", 418)   # the first one after step 418                 Event | None

Opening plays the whole file once; then a state is the keyframe before it and at most 63 steps of block
changes, and a step is one JSON line parsed on demand. Everything is read-only and may be shared.

The trace of an engine that still runs is read line by line, as it comes:

    reader = TraceReader.growing("live", first_line)
    reader.feed(line)

One thread may feed while others read: the steps before `num_steps` are complete and never change.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from engine.core.sched_output import NotScheduled, Reason
from engine.trace.format import (
    BLOCK_EVENTS,
    CHECK_EVERY,
    HASH_BYTES,
    REQUEST_EVENTS,
    VERSION,
    TraceError,
)
from engine.trace.replay import (
    NOBODY,
    BlockChanges,
    BlockColumns,
    Blocks,
    Problem,
    Replay,
    RequestHistory,
    Stay,
)

_CHUNK_BYTES = 1 << 16
_MOST_BLOCKS = 1 << 24
"""That a header may claim: a damaged one must not make the reader take all memory."""
_NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What playing a record raises that no writer wrote."""


class Event(NamedTuple):
    """Something that happened, and when."""

    step: int
    kind: str
    """One of BLOCK_EVENTS or REQUEST_EVENTS."""
    request_id: str | None
    block: int | None
    """None for what happens to requests."""


class Content(NamedTuple):
    """What a block held: whose tokens, under which hash."""

    request: int
    """Number of the request that computed it."""
    hash_hex: str
    """The first bytes of the hash."""


class Row(NamedTuple):
    """One row of a step's batch."""

    request_id: str
    start: int
    num_tokens: int
    phase: str
    """decode: only the newest token and its drafts; prefill: prompt or recomputation."""
    tokens: tuple[int, ...]
    """Output accepted in this step."""


@dataclass(frozen=True)
class StepRecord:
    """What one step did. The counts are those after it."""

    step: int
    time_s: float
    """Begin, in seconds since the trace began."""
    duration_s: float
    rows: list[Row]
    admitted: list[str]
    """For the first time."""
    resumed: list[str]
    preempted: list[str]
    finished: list[tuple[str, str]]
    """(request id, finish reason)"""
    added: list[str]
    """Arrived since the step before."""
    aborted: list[str]
    """Aborted since the step before."""
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_cached_blocks: int
    num_kv_tokens: int
    """Tokens of running requests whose KV exists."""
    not_scheduled: list[NotScheduled]
    counters: dict[str, int]
    """`StepStats` fields named in `stats.TRACED_COUNTERS`, those that are not zero."""
    copy_out: list[tuple[int, int]]
    """(device block, host block): copied before the rows were computed, and before copy_in."""
    copy_in: list[tuple[int, int]]
    """(host block, device block)"""

    @property
    def num_tokens(self) -> int:
        """Computed in this step, against the budget."""
        return sum(row.num_tokens for row in self.rows)


class StepSeries:
    """One figure of every step, for charts: index i belongs to step i. Counts are those after the step."""

    def __init__(self) -> None:
        self.time_s = array("d")
        """Begin, in seconds since the trace began."""
        self.duration_s = array("d")
        self.num_tokens = array("i")
        """Computed in the step."""
        self.running = array("i")
        self.waiting = array("i")
        self.free_blocks = array("i")
        self.cached_blocks = array("i")
        self.kv_tokens = array("q")
        """Tokens of running requests whose KV exists."""

    def append(self, record: dict[str, Any]) -> None:
        self.time_s.append(record["ts"])
        self.duration_s.append(record["dur"])
        self.num_tokens.append(sum(record.get("n", ())))
        self.running.append(record["run"])
        self.waiting.append(record["wait"])
        self.free_blocks.append(record["free"])
        self.cached_blocks.append(record["cached"])
        self.kv_tokens.append(record["kv"])


class TraceState:
    """The engine after a step. Parts that take time to list are made when first asked for."""

    def __init__(self, step: int, blocks: Blocks, live: list[RequestHistory]) -> None:
        self.step = step
        self.blocks = blocks
        """Columns with one entry per block id: `ref`, `owner` (a request number), `hash`."""
        self._stays: list[tuple[RequestHistory, Stay]] = []
        self._waiting: list[RequestHistory] = []
        for request in live:
            stay = request.stay_at(step)
            if stay is None:
                self._waiting.append(request)
            else:
                self._stays.append((request, stay))

    @cached_property
    def running(self) -> list[str]:
        """Most important first."""
        return [request.request_id for request, _ in self._stays]

    @cached_property
    def waiting(self) -> list[str]:
        """Head of the queue first."""
        return [request.request_id for request in self._waiting]

    @cached_property
    def block_tables(self) -> dict[str, list[int]]:
        """Block ids of the running requests; those that wait have none."""
        return {request.request_id: stay.table_at(self.step) for request, stay in self._stays}

    @cached_property
    def num_computed(self) -> dict[str, int]:
        """Tokens whose KV exists, of all live requests."""
        computed = {
            request.request_id: request.row_computed[request.row_before(self.step)]
            for request, _ in self._stays
        }
        return computed | dict.fromkeys(self.waiting, 0)

    @cached_property
    def num_tokens(self) -> dict[str, int]:
        """Prompt and output, of all live requests."""
        live = [request for request, _ in self._stays] + self._waiting
        return {
            request.request_id: request.num_prompt_tokens + request.num_outputs_at(self.step)
            for request in live
        }

    @cached_property
    def owners(self) -> dict[int, list[str]]:
        """block -> the running requests that hold it, most important first."""
        owners: dict[int, list[str]] = {}
        for request_id, table in self.block_tables.items():
            for block in table:
                owners.setdefault(block, []).append(request_id)
        return owners


class _Keyframe(NamedTuple):
    """The state before a step whose number is a multiple of CHECK_EVERY."""

    blocks: BlockColumns
    live: array[int]
    """Numbers of the requests that live."""


class _Positions(NamedTuple):
    """Where the events of one kind stand among the first `seen` changes."""

    places: array[int]
    seen: int


class TraceReader:
    """One trace in memory. Raises TraceError for what is no trace or too new to read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        lines, damage = self._load()
        self._begin(lines[0] if lines else b"")
        self._play(lines[1:])
        if damage:
            self.warnings.append(f"the file is {damage}; read to the last whole record")
            message = f"the file is {damage}: what follows step {self.num_steps - 1} is lost"
            self.problems.append(Problem(self.num_steps, message))
        elif not (self.is_complete or self.error or self.problems):
            self.warnings.append(
                "there is no end record: the engine was killed or still runs; read to its last flush"
            )

    @classmethod
    def growing(cls, name: str, header: bytes) -> TraceReader:
        """A trace without steps, for `feed`. `name` stands in messages, `header` is the first line."""
        reader = cls.__new__(cls)
        reader.path = Path(name)
        reader._begin(header.rstrip(b"\n"))
        return reader

    def feed(self, line: bytes) -> None:
        """Take in the next line of a trace that grows, with or without its line end.

        Raises TraceError for one that cannot be replayed: it is lost, and so is what follows.
        """
        line = line.rstrip(b"\n")
        try:
            record = json.loads(line)
            self._play_record(record, line)
        except _NONSENSE as error:
            raise TraceError(f"{self.path.name}: {self._nonsense(error)}") from error
        if record["t"] == "error":
            self._warn_of_error()

    def _begin(self, header: bytes) -> None:
        self.header: dict[str, Any] = self._read_header(header)
        self.warnings: list[str] = []
        """What is missing from the file, in sentences; empty for a complete one."""
        self.is_complete = False
        """The writer was closed: nothing is missing at the end."""
        self.error: str | None = None
        """What the engine raised, if it did."""
        self.error_steps: list[int] = []
        """Steps that raised; after all but the last the engine went on, without its requests."""
        self.notes: list[str] = []
        """What the writer had to say about the run as a whole, in sentences."""
        self._replay = Replay(self.header)
        self.series = StepSeries()
        self._steps: list[bytes] = []
        self._added = array("i")
        """Per request, `RequestHistory.added`."""
        self._keyframes = [_Keyframe(self._replay.blocks.copy(), array("i"))]
        self._lifecycle: dict[str, list[Event]] = {kind: [] for kind in REQUEST_EVENTS}
        self._positions: dict[str, _Positions] = {}
        """Per kind of block event, where in `changes` it stands; made when asked for."""
        self._by_name: dict[str, list[RequestHistory]] = {}
        self._seals: dict[int, list[int]] = {}
        self._num_seals_seen = 0
        self._seals_lock = Lock()
        self._last_record: tuple[int, dict[str, Any]] = (-1, {})
        """Kept because whoever looks at a step asks several questions about it."""
        self._num_lines = 1
        self._log_crc = zlib.crc32(header + b"\n")
        """Of all lines so far."""

    # ------------------------------------------------------------------ overview

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    @property
    def num_lines(self) -> int:
        """Lines taken in so far: says whether a trace has grown."""
        return self._num_lines

    @property
    def num_blocks(self) -> int:
        return self._replay.num_blocks

    @property
    def block_size(self) -> int:
        return self._replay.block_size

    @property
    def problems(self) -> list[Problem]:
        """Where the records contradict themselves or the engine; empty for a sound trace."""
        return self._replay.problems

    @property
    def requests(self) -> list[RequestHistory]:
        """By number, that is in order of arrival. A name that was used again appears again."""
        return self._replay.requests

    @property
    def duration_s(self) -> float:
        """From the beginning of the trace to the end of its last step."""
        return self.series.time_s[-1] + self.series.duration_s[-1] if self._steps else 0.0

    @property
    def changes(self) -> BlockChanges:
        """Every change of every block."""
        return self._replay.changes

    @property
    def workload_hash(self) -> str:
        """The same for two runs that were asked the same, however the engine was set up."""
        digest = sha256()
        for request in self.requests:
            names = ("prompt", "params", "priority", "seed", "lora", "salt")
            work = {name: request.record[name] for name in names}
            digest.update(json.dumps(work, separators=(",", ":")).encode())
        return digest.hexdigest()

    # ------------------------------------------------------------------ one step

    def step(self, step: int) -> StepRecord:
        record = self._record(step)
        newcomers = range(bisect_left(self._added, step), bisect_right(self._added, step))
        return StepRecord(
            step=step,
            time_s=record["ts"],
            duration_s=record["dur"],
            rows=[
                self._row(step, *row)
                for row in zip(record.get("q", ()), record.get("n", ()), record.get("tok", ()), strict=True)
            ],
            admitted=[self._name(number) for number, *_ in record.get("new", ())],
            resumed=[self._name(number) for number, *_ in record.get("res", ())],
            preempted=[self._name(number) for number in record.get("pre", ())],
            finished=[(self._name(number), reason) for number, reason in record.get("fin", ())],
            added=[self._name(number) for number in newcomers],
            aborted=[str(event.request_id) for event in self._lifecycle_at("abort", step)],
            num_running=record["run"],
            num_waiting=record["wait"],
            num_free_blocks=record["free"],
            num_cached_blocks=record["cached"],
            num_kv_tokens=record["kv"],
            not_scheduled=self._not_scheduled(record),
            counters=record.get("cnt", {}),
            copy_out=[(device, host) for device, host in record.get("out", ())],
            copy_in=[(host, device) for host, device in record.get("in", ())],
        )

    def record(self, step: int) -> dict[str, Any]:
        """The step's line as it stands in the file (`trace_format`), for what `step` leaves out or is too slow for."""
        return self._record(step)

    def counter_totals(self) -> dict[str, int]:
        """The counters of all steps together, by name; those that stayed 0 are left out."""
        totals: dict[str, int] = {}
        for step in range(self.num_steps):
            for name, value in self._record(step).get("cnt", {}).items():
                totals[name] = totals.get(name, 0) + value
        return dict(sorted(totals.items()))

    def reasons(self, step: int) -> list[NotScheduled]:
        """Why requests were not scheduled; an entry for `None` stands for every waiting request not named."""
        return self._not_scheduled(self._record(step))

    def steps_with(self, reason: Reason) -> list[int]:
        """The steps in which somebody was not scheduled for this reason."""
        word = f'"{reason}"'.encode()  # a step's line has numbers for requests: the word is nothing else
        return [step for step, line in enumerate(self._steps) if word in line]

    def _not_scheduled(self, record: dict[str, Any]) -> list[NotScheduled]:
        return [
            NotScheduled(None if number is None else self._name(number), Reason(reason), details)
            for number, reason, details in record.get("why", ())
        ]

    def _name(self, number: int) -> str:
        return self.requests[number].request_id

    def _row(self, step: int, number: int, num_tokens: int, tokens: int | list[int] | None) -> Row:
        request = self.requests[number]
        stay = request.last_stay(step)
        if stay is None or stay.admitted == step:
            start = stay.start if stay else 0
        else:
            start = request.row_computed[request.row_before(step - 1)]
        num_outputs = request.num_outputs_at(step - 1)
        is_decode = num_outputs > 0 and start == request.num_prompt_tokens + num_outputs - 1
        taken = () if tokens is None else (tokens,) if isinstance(tokens, int) else tuple(tokens)
        return Row(request.request_id, start, num_tokens, "decode" if is_decode else "prefill", taken)

    def _record(self, step: int) -> dict[str, Any]:
        if not 0 <= step < self.num_steps:
            last = f"0 to {self.num_steps - 1}" if self._steps else "no steps at all"
            raise TraceError(f"{self.path.name} has no step {step}: it holds {last}")
        before, record = self._last_record
        if before != step:
            record = json.loads(self._steps[step])
            self._last_record = step, record
        return record

    # ------------------------------------------------------------------ states

    def blocks_at(self, step: int) -> Blocks:
        """All blocks after a step."""
        self._check_step(step)
        frame = (step + 1) // CHECK_EVERY
        changes = self._replay.changes
        first, last = bisect_left(changes.step, frame * CHECK_EVERY), bisect_right(changes.step, step)
        return Blocks(self._keyframes[frame].blocks, changes, slice(first, last))

    def state_at(self, step: int) -> TraceState:
        """Everything after a step."""
        blocks = self.blocks_at(step)
        return TraceState(step, blocks, sorted(self._live_at(step), key=lambda r: r.key_at(step)))

    def _live_at(self, step: int) -> list[RequestHistory]:
        frame = (step + 1) // CHECK_EVERY
        newcomers = range(bisect_left(self._added, frame * CHECK_EVERY), bisect_right(self._added, step))
        known = [self.requests[number] for number in (*self._keyframes[frame].live, *newcomers)]
        return [request for request in known if request.lives_at(step)]

    def raw_step(self, step: int) -> dict[str, Any]:
        """The step's line as it stands in the file (`trace_format`)."""
        return self._record(step)

    def _check_step(self, step: int) -> None:
        if not 0 <= step < self.num_steps:
            self._record(step)

    # ------------------------------------------------------------------ events

    def events(self, kind: str) -> list[Event]:
        """All events of a kind, in order."""
        if kind in self._lifecycle:
            return list(self._lifecycle[kind])
        return [self._block_event(position) for position in self._block_positions(kind)]

    def next_event(self, kind: str, step: int) -> Event | None:
        """The first event of a kind after a step."""
        if kind in self._lifecycle:
            events = self._lifecycle[kind]
            index = bisect_right(events, step, key=_event_step)
            return events[index] if index < len(events) else None
        positions = self._block_positions(kind)
        index = bisect_right(positions, step, key=self._replay.changes.step.__getitem__)
        return self._block_event(positions[index]) if index < len(positions) else None

    def previous_event(self, kind: str, step: int) -> Event | None:
        """The last event of a kind before a step."""
        if kind in self._lifecycle:
            events = self._lifecycle[kind]
            index = bisect_left(events, step, key=_event_step)
            return events[index - 1] if index else None
        positions = self._block_positions(kind)
        index = bisect_left(positions, step, key=self._replay.changes.step.__getitem__)
        return self._block_event(positions[index - 1]) if index else None

    def block_events_at(self, step: int) -> list[Event]:
        """What happened to blocks in one step, in order."""
        steps = self._replay.changes.step
        return [self._block_event(n) for n in range(bisect_left(steps, step), bisect_right(steps, step))]

    def content_before(self, block: int, step: int) -> Content | None:
        """What a block was last published as before a step; None if the trace does not say."""
        seals = self._seals_of(block)
        index = bisect_left(seals, step, key=self._replay.changes.step.__getitem__)
        if not index:
            return None
        changes, position = self._replay.changes, seals[index - 1]
        value: int = changes.after.hash[position]
        return Content(changes.request[position], value.to_bytes(HASH_BYTES, sys.byteorder).hex())

    def _seals_of(self, block: int) -> list[int]:
        """Where in `changes` a block's hashes were published. Goes on from where the last call stopped."""
        changes, seal = self._replay.changes, BLOCK_EVENTS.index("seal")
        with self._seals_lock:
            for position in range(self._num_seals_seen, len(changes)):
                if changes.kind[position] == seal:
                    self._seals.setdefault(changes.block[position], []).append(position)
            self._num_seals_seen = len(changes)
        return self._seals.get(block, [])

    def tokens(self, request_id: str) -> list[tuple[int, int]]:
        """The output of a request: (step, token id), in order."""
        request = self.find(request_id)
        tokens: list[tuple[int, int]] = []
        for step, num_outputs in zip(request.row_steps, request.row_outputs, strict=True):
            tokens += [(step, token) for token in request.tokens[len(tokens) : num_outputs]]
        return tokens

    def find(self, request_id: str, step: int | None = None) -> RequestHistory:
        """A request by name. Of several that bore it, the last that had arrived at `step`."""
        namesakes = self._by_name.get(request_id)
        if not namesakes:
            close = get_close_matches(request_id, list(self._by_name)[:10_000], n=3)
            known = f"close to it: {', '.join(close)}" if close else f"it holds {len(self.requests)} requests"
            raise TraceError(f"{self.path.name} knows no request {request_id!r}; {known}")
        arrived = [request for request in namesakes if step is None or request.added <= step]
        return arrived[-1] if arrived else namesakes[0]

    def lifecycle_at(self, kind: str, step: int) -> list[Event]:
        """What happened to requests in one step: events of one of REQUEST_EVENTS."""
        return self._lifecycle_at(kind, step)

    def _lifecycle_at(self, kind: str, step: int) -> list[Event]:
        events = self._lifecycle[kind]
        first = bisect_left(events, step, key=_event_step)
        return events[first : bisect_right(events, step, key=_event_step)]

    def _block_positions(self, kind: str) -> array[int]:
        if kind not in BLOCK_EVENTS:
            raise TraceError(f"no event kind {kind!r}: {', '.join((*REQUEST_EVENTS, *BLOCK_EVENTS))}")
        found, seen = self._positions.get(kind, _Positions(array("q"), 0))
        if seen < len(self.changes):
            code, news = BLOCK_EVENTS.index(kind), self.changes.kind[seen:]
            found = found + array("q", [n for n, each in enumerate(news, seen) if each == code])
            self._positions[kind] = _Positions(found, seen + len(news))
        return found

    def _block_event(self, position: int) -> Event:
        changes = self._replay.changes
        number = changes.request[position]
        return Event(
            changes.step[position],
            BLOCK_EVENTS[changes.kind[position]],
            None if number == NOBODY else self.requests[number].request_id,
            changes.block[position],
        )

    # ------------------------------------------------------------------ opening

    def _load(self) -> tuple[list[bytes], str]:
        """The file's whole lines, and how the file is damaged, if it is."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise TraceError(f"cannot read {self.path}: {error.strerror or error}") from error
        if data[:2] != b"\x1f\x8b":
            what = "is empty" if not data else "does not begin like a gzip file"
            raise TraceError(f"{self.path} is not a trace: it {what}. `prep trace record` makes traces")
        text, damage = _decompress(data)
        return text.split(b"\n")[:-1], damage

    def _read_header(self, line: bytes) -> dict[str, Any]:
        try:
            header = json.loads(line)
            version = header["v"]
            if header["t"] != "hdr" or not isinstance(version, int):
                raise ValueError("the first record is no header")
            sizes = (header["blocks"], header["block_size"]) if version <= VERSION else ()
            if not all(isinstance(size, int) and 0 < size <= _MOST_BLOCKS for size in sizes):
                raise ValueError("the header has no sizes")
            config = header["config"] = header.get("config") or {}
            if version <= VERSION and not all(isinstance(part, dict) for part in (config, *config.values())):
                raise ValueError("the header's config is none")
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise TraceError(
                f"{self.path} is not a trace: its first line is no trace header. `prep trace record` makes "
                "traces"
            ) from error
        if version > VERSION:
            raise TraceError(
                f"{self.path} has trace format {version}, and this prep reads up to {VERSION}: update prep, "
                "or record the run again with this one"
            )
        found: dict[str, Any] = header
        return found

    def _play(self, lines: list[bytes]) -> None:
        for line in lines:
            try:
                self._play_record(json.loads(line), line)
            except _NONSENSE as error:
                self.problems.append(Problem(self.num_steps, self._nonsense(error)))
                self.warnings.append(f"line {self._num_lines + 1} cannot be replayed; read up to there")
                return
        if self.error is not None:
            self._warn_of_error()

    def _warn_of_error(self) -> None:
        self.warnings.append(f"the engine raised {self.error}")

    def _nonsense(self, error: Exception) -> str:
        what = f"{type(error).__name__}: {error}"
        return f"line {self._num_lines + 1} makes no sense ({what}): step {self.num_steps} is lost"

    def _play_record(self, record: dict[str, Any], line: bytes) -> None:
        replay, kind, step = self._replay, record["t"], record["i"]
        if kind == "step":
            if step != self.num_steps:
                raise ValueError(f"step {step} where {self.num_steps} is due")
            replay.step(record)
            self.series.append(record)
            self._note_lifecycle(record)
            if replay.num_steps % CHECK_EVERY == 0:
                self._keyframes.append(_Keyframe(replay.blocks.copy(), array("i", replay.live)))
            self._steps.append(line)  # last: readers in other threads see the step from here on
        elif kind == "add":
            request = replay.add(record)
            self._added.append(request.added)
            self._by_name.setdefault(request.request_id, []).append(request)
            self._note("add", step, request)
        elif kind == "abort":
            self._note("abort", step, replay.abort(record))
        elif kind == "chk":
            replay.check(record, self._log_crc)
        elif kind == "error":
            replay.check(record, self._log_crc)
            self.error = record["message"]
            self.error_steps.append(step)
        elif kind == "end":
            replay.play_events(record["ev"], step)
            replay.check(record, self._log_crc)
            self.is_complete = True
            self.notes = record.get("notes", [])
        else:
            raise ValueError(f"unknown record {kind!r}")
        self._num_lines += 1
        self._log_crc = zlib.crc32(line + b"\n", self._log_crc)

    def _note_lifecycle(self, record: dict[str, Any]) -> None:
        step = record["i"]
        for name, kind in (("new", "admit"), ("res", "resume")):
            for number, start, *_ in record.get(name, ()):
                request = self.requests[number]
                self._note(kind, step, request)
                if start:
                    self._note("hit", step, request)
        for number in record.get("pre", ()):
            self._note("preempt", step, self.requests[number])
        for number, _ in record.get("fin", ()):
            self._note("finish", step, self.requests[number])

    def _note(self, kind: str, step: int, request: RequestHistory) -> None:
        self._lifecycle[kind].append(Event(step, kind, request.request_id, None))


def _decompress(data: bytes) -> tuple[bytes, str]:
    """All text that can be used, and how the file is damaged, if it is.

    A member that is cut off gives what it holds; one whose checksum is wrong gives nothing, because
    any of it may be wrong, and neither does what follows.
    """
    text: list[bytes] = []
    view, position = memoryview(data), 0
    while position < len(data):
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        parts: list[bytes] = []
        try:
            while not member.eof and position < len(data):
                chunk = view[position : position + _CHUNK_BYTES]
                parts.append(member.decompress(chunk))
                position += len(chunk) - len(member.unused_data)
        except zlib.error:
            return b"".join(text), f"damaged near byte {position}"
        text += parts
        if not member.eof:
            return b"".join(text), "cut off in the middle"
    return b"".join(text), ""


def _event_step(event: Event) -> int:
    return event.step
