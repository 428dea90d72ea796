"""Read a step trace: a file as a whole, or the trace of an engine that still runs, line by line.

    reader = TraceReader("run.itrace")              # answers the questions of engine/trace/protocol.py
    reader = TraceReader.growing("live", first_line)
    reader.feed(line)

Opening replays the whole file once. After that a state is the keyframe before it and at most 63 steps of
block changes, and a step is one JSON line parsed on demand.

One thread may feed while others read: the steps before `num_steps` are complete and never change.
"""

from __future__ import annotations

import os
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from engine.core.sched_output import Reason
from engine.trace.blocks import BlockColumns, Blocks
from engine.trace.format import (
    BLOCK_EVENTS,
    CHECK_EVERY,
    HASH_BYTES,
    REQUEST_EVENTS,
    TRUNCATED,
    TraceError,
    parse_line,
    read_header,
)
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.records import Content, Event, StepSeries
from engine.trace.replay import Problem, Replay
from prep_common.text_file import unreadable

_CHUNK_BYTES = 1 << 16
_MAX_RATIO, _LEAST_BYTES = 100, 1 << 28
"""Text of a trace over the size of its file, checked above this number of bytes: steps compress to about a tenth."""
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions raised by replaying a malformed record."""


class _Keyframe(NamedTuple):
    """The state before a step whose number is a multiple of CHECK_EVERY."""

    blocks: BlockColumns
    live: array[int]  # numbers of the live requests


class TraceReader(Trace):
    """One trace in memory. Raises TraceError if the file is not a trace or too new."""

    def __init__(self, path: str | os.PathLike[str], header: bytes | None = None) -> None:
        """path: the file to read. With `header`, the first line of a growing trace, it is only a name in messages."""
        self.path = Path(path)
        lines, damage = self._load() if header is None else ([header.rstrip(b"\n")], "")
        if not lines and damage == "truncated":
            raise TraceError(TRUNCATED.format(self.path))
        first = lines[0] if lines else b""
        self.header = read_header(first, self.path)
        self.warnings = []
        self.is_complete = False
        self.error = None
        self.error_steps = []
        self.notes = []
        self.series = StepSeries()
        self._replay = replay = Replay(self.header)
        self.requests, self.problems, self.changes = replay.requests, replay.problems, replay.changes
        self.arrivals = self._arrivals = array("i")
        self.lines: list[bytes] = []
        self._keyframes = [_Keyframe(replay.blocks.copy(), array("i"))]
        self.lifecycle: dict[str, list[Event]] = {kind: [] for kind in REQUEST_EVENTS}
        self._found: dict[str, tuple[array[int], int]] = {}  # kind -> indices, and changes seen
        self.namesakes: dict[str, list[RequestHistory]] = {}
        self._seals: dict[int, list[int]] = {}
        self._num_seals_seen = 0
        self._seals_lock = Lock()
        self.num_lines = 1
        self._log_crc = zlib.crc32(first + b"\n")  # CRC of all lines so far
        if header is None:
            self._replay_lines(lines[1:])
            self.warn_of_end(damage)

    @classmethod
    def growing(cls, name: str, header: bytes) -> TraceReader:
        """A trace without steps, for `feed`. `name` stands in messages, `header` is the first line."""
        return cls(name, header)

    def feed(self, line: bytes) -> None:
        """Take in the next line of a growing trace, with or without its line end.

        Raises TraceError for a malformed one: its step and all later ones are lost.
        """
        line = line.rstrip(b"\n")
        try:
            record = parse_line(line)
            self._replay_record(record, line)
        except _MALFORMED as error:
            raise TraceError(f"{self.path.name}: {self._describe_malformed(error)}") from error
        if record["t"] == "error":
            self.warnings.append(f"the engine raised {self.error}")

    # ------------------------------------------------------------------ the abstract part of Trace

    def blocks_after(self, step: int) -> Blocks:
        frame, changes = (step + 1) // CHECK_EVERY, self._replay.changes
        first, last = bisect_left(changes.step, frame * CHECK_EVERY), bisect_right(changes.step, step)
        return Blocks(self._keyframes[frame].blocks, changes, slice(first, last))

    def live_after(self, step: int) -> list[RequestHistory]:
        frame = (step + 1) // CHECK_EVERY
        arrived = range(bisect_left(self._arrivals, frame * CHECK_EVERY), bisect_right(self._arrivals, step))
        known = [self.requests[number] for number in (*self._keyframes[frame].live, *arrived)]
        return [request for request in known if request.lives_at(step)]

    def positions(self, kind: str) -> array[int]:
        positions, seen = self._found.get(kind, (array("q"), 0))
        if seen < len(self.changes):
            code, new = BLOCK_EVENTS.index(kind), self._replay.changes.kind[seen:]
            positions = positions + array("q", [n for n, event in enumerate(new, seen) if event == code])
            self._found[kind] = positions, seen + len(new)
        return positions

    def content_before(self, block: int, step: int) -> Content | None:
        changes, seals = self._replay.changes, self._seals_of(block)
        index = bisect_left(seals, step, key=changes.step.__getitem__)
        if not index:
            return None
        position = seals[index - 1]
        value = changes.after.hash[position]
        return Content(changes.request[position], value.to_bytes(HASH_BYTES, sys.byteorder).hex())

    def counter_totals(self) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for step in range(self.num_steps):
            totals.update(self.record(step).get("cnt", {}))
        return dict(sorted(totals.items()))

    def steps_with(self, reason: Reason) -> list[int]:
        word = f'"{reason}"'.encode()  # a step's line refers to requests by number: only a reason matches
        return [step for step, line in enumerate(self.lines) if word in line]

    def _seals_of(self, block: int) -> list[int]:
        """Indices into `changes` at which a block's hashes were published. Continues where the last call stopped."""
        changes, seal = self._replay.changes, BLOCK_EVENTS.index("seal")
        with self._seals_lock:
            for position in range(self._num_seals_seen, len(changes)):
                if changes.kind[position] == seal:
                    self._seals.setdefault(changes.block[position], []).append(position)
            self._num_seals_seen = len(changes)
        return self._seals.get(block, [])

    # ------------------------------------------------------------------ opening

    def _load(self) -> tuple[list[bytes], str]:
        """The file's whole lines, and how the file is damaged; empty if it is not."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise TraceError(f"{unreadable(self.path, error)} (`prep trace record` makes traces)") from error
        if data[:2] != b"\x1f\x8b":
            what = "is empty" if not data else "does not begin like a gzip file"
            raise TraceError(f"{self.path} is not a trace: it {what}. `prep trace record` makes traces")
        text, damage = _decompress(data)
        return text.split(b"\n")[:-1], damage

    def _replay_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            try:
                self._replay_record(parse_line(line), line)
            except _MALFORMED as error:
                self.problems.append(Problem(self.num_steps, self._describe_malformed(error)))
                self.warnings.append(f"line {self.num_lines + 1} cannot be replayed; read up to there")
                return

    def _describe_malformed(self, error: Exception) -> str:
        what = f"{type(error).__name__}: {error}"
        return f"line {self.num_lines + 1} is malformed ({what}): step {self.num_steps} is lost"

    def _replay_record(self, record: dict[str, Any], line: bytes) -> None:
        replay, kind, step = self._replay, record["t"], record["i"]
        if kind == "step":
            if step != self.num_steps:
                raise ValueError(f"step {step} instead of step {self.num_steps}")
            replay.step(record)
            self.series.append(record)
            self._note_lifecycle(record)
            if replay.num_steps % CHECK_EVERY == 0:
                self._keyframes.append(_Keyframe(replay.blocks.copy(), array("i", replay.live)))
            self.lines.append(line)  # last: readers in other threads see the step from here on
        elif kind == "add":
            request = replay.add(record)
            self._arrivals.append(request.added)
            self.namesakes.setdefault(request.request_id, []).append(request)
            self._note("add", step, request)
        elif kind == "abort":
            self._note("abort", step, replay.abort(record))
        elif kind in ("chk", "error", "end"):
            replay.play_events(record.get("ev", ()), step)
            replay.check(record, self._log_crc)
            if kind == "error":
                self.error = record["message"]
                self.error_steps.append(step)
            self.is_complete = kind == "end"
            self.notes = record.get("notes", [])
        else:
            raise ValueError(f"unknown record {kind!r}")
        self.num_lines += 1
        self._log_crc = zlib.crc32(line + b"\n", self._log_crc)

    def _note_lifecycle(self, record: dict[str, Any]) -> None:
        step = record["i"]
        for name, kind in (("new", "admit"), ("res", "resume"), ("pre", "preempt"), ("fin", "finish")):
            for entry in record.get(name, ()):
                request = self.requests[entry if kind == "preempt" else entry[0]]
                self._note(kind, step, request)
                if kind in ("admit", "resume") and entry[1]:
                    self._note("hit", step, request)

    def _note(self, kind: str, step: int, request: RequestHistory) -> None:
        self.lifecycle[kind].append(Event(step, kind, request.request_id, None))


def _decompress(data: bytes) -> tuple[bytes, str]:
    """All usable text, and how the file is damaged; empty if it is not.

    A truncated gzip member yields what it holds. One with a wrong checksum yields nothing, because any part of it
    may be wrong, and neither does what follows.
    """
    text: list[bytes] = []
    view, position, num_bytes = memoryview(data), 0, 0
    while position < len(data):
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        parts: list[bytes] = []
        try:
            while not member.eof and position < len(data):
                chunk = view[position : position + _CHUNK_BYTES]
                parts.append(member.decompress(chunk))
                position += len(chunk) - len(member.unused_data)
                num_bytes += len(parts[-1])
                if num_bytes > max(_LEAST_BYTES, _MAX_RATIO * len(data)):
                    return b"".join(text), f"unpacked to more than {_MAX_RATIO} times its size"
        except zlib.error:
            return b"".join(text), f"damaged near byte {position}"
        text += parts
        if not member.eof:
            return b"".join(text), "truncated"
    return b"".join(text), ""
