"""Read a trace file in one pass, from text to columns of numbers.

`Scan` only appends records to columns; `trace_columns` then computes with all of them at once. Two processes read
a large file, each a share of its members.
"""

from __future__ import annotations

import gc
import mmap
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.debugger.trace_record import NO_OUTPUT, RecordReader
from app.debugger.trace_text import member_near, members
from engine.trace.format import BLOCK_EVENTS, TraceError
from prep_common.platforms import can_fork

PARALLEL_BYTES = 4 << 20
"""Larger files are read by two processes; for smaller ones starting a process costs more than it saves."""
NUM_SAMPLES = 16
KIND_CODES = {kind: code for code, kind in enumerate(BLOCK_EVENTS)}
NO_REQUEST = -1
NO_TOKENS: list[int] = []
NO_NUMBERS = np.array([], np.int32)
FIGURES = (
    ("step", "i"),
    ("time_s", "ts"),
    ("duration_s", "dur"),
    ("running", "run"),
    ("waiting", "wait"),
    ("free_blocks", "free"),
    ("cached_blocks", "cached"),
    ("kv_tokens", "kv"),
)
"""Columns with one number of each step's record: name and key."""


class ContradictionError(Exception):
    """Records that contradict each other: the file was not written by an engine."""


def numbers(code: str = "i") -> Any:
    return field(default_factory=lambda: array(code))


def append(column: array[int], values: NDArray[np.int32] | list[int]) -> None:
    if isinstance(values, np.ndarray):
        column.frombytes(values.tobytes())
    else:
        column.fromlist(values)


@dataclass
class Scan:
    """The records of some members of a trace, in file order."""

    # One entry per step
    step: array[int] = numbers()
    time_s: array[float] = numbers("d")
    duration_s: array[float] = numbers("d")
    running: array[int] = numbers()
    waiting: array[int] = numbers()
    free_blocks: array[int] = numbers()
    cached_blocks: array[int] = numbers()
    kv_tokens: array[int] = numbers("q")
    num_tokens: array[int] = numbers()
    line_member: array[int] = numbers("q")
    """Start of the step's member in the file; `line_start`: start of its line in the member's text."""
    line_start: array[int] = numbers("q")
    num_rows: array[int] = numbers()
    num_events: array[int] = numbers()

    # One entry per row of a batch
    row_request: array[int] = numbers()
    row_num_tokens: array[int] = numbers()
    row_outputs: array[int] = numbers()
    """Tokens of output accepted, or NO_OUTPUT."""
    tokens: array[int] = numbers()
    """All accepted output."""

    # Block events: consecutive ones of one kind and request together
    run_kind: array[int] = numbers()
    run_request: array[int] = numbers()
    run_length: array[int] = numbers()
    event_block: array[int] = numbers()
    seal_hash: bytearray = field(default_factory=bytearray)
    """8 bytes per published block."""

    # Requests
    adds: list[dict[str, Any]] = field(default_factory=list)
    """The records with `num_prompt_tokens` instead of their prompts, and the place of the line."""
    aborts: list[dict[str, Any]] = field(default_factory=list)
    admissions: list[tuple[int, int, int, int, int, bool]] = field(default_factory=list)
    """(step, request, start, blocks behind the window, index of its row, whether it was preempted before)"""
    slides: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, request, blocks behind the window)"""
    preempted: list[tuple[int, int]] = field(default_factory=list)
    finished: list[tuple[int, int, str]] = field(default_factory=list)
    rekeyed: list[tuple[int, int, list[float]]] = field(default_factory=list)

    # The run
    counters: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, list[int]] = field(default_factory=dict)
    """Reason -> steps in which it held a request back."""
    errors: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_complete: bool = False
    end_step: int | None = None
    num_end_events: int = 0

    # The text
    num_lines: int = 0
    num_bytes: int = 0
    damage: str = ""
    malformed: str = ""
    """Reason why the next line could not be read; reading stops there."""
    last_offset: int = 0
    """Start of the first member that was not read."""

    def take(self, record: dict[str, Any], member: int, start: int) -> None:
        """Take in one record. `member`, `start`: the place of its line."""
        kind = record["t"]
        if kind == "step":
            self._step(record)
            self.line_member.append(member)
            self.line_start.append(start)
        elif kind == "add":
            self.adds.append({**record, "place": (member, start)})
        elif kind == "abort":
            self.aborts.append(record)
        elif kind == "error":
            self.errors.append((record["i"], record["message"]))
        elif kind == "end":
            self.end_step, self.is_complete = record["i"], True
            self.notes = record.get("notes", [])
            self.num_end_events = self._events(record["ev"])
        elif kind not in ("chk", "hdr"):
            raise ValueError(f"unknown record {kind!r}")

    def _step(self, record: dict[str, Any]) -> None:
        step = record["i"]
        rows = len(self.row_request)
        requests = record.get("q", NO_NUMBERS)
        self.rekeyed += [(step, *entry) for entry in record.get("rekey", ())]
        for name in ("new", "res"):
            for number, begin, *behind in record.get(name, ()):
                row = rows + list(requests).index(number)
                self.admissions.append((step, number, begin, behind[0] if behind else 0, row, name == "res"))
        counts = record.get("n", NO_NUMBERS)
        append(self.row_request, requests)
        append(self.row_num_tokens, counts)
        self._outputs(record.get("tok", NO_NUMBERS))
        self.slides += [(step, number, behind) for number, behind in record.get("slid", ())]
        self.preempted += [(step, number) for number in record.get("pre", ())]
        self.finished += [(step, number, reason) for number, reason in record.get("fin", ())]
        for name, value in record.get("cnt", {}).items():
            self.counters[name] = self.counters.get(name, 0) + value
        for reason in {entry[1] for entry in record.get("why", ())}:
            self.reasons.setdefault(reason, []).append(step)
        self.num_events.append(self._events(record.get("ev", ())))
        self.num_rows.append(len(requests))
        self.num_tokens.append(int(np.sum(counts)))
        for name, key in FIGURES:
            getattr(self, name).append(record[key])

    def _outputs(self, tokens: NDArray[np.int32] | list[int | list[int] | None]) -> None:
        if isinstance(tokens, np.ndarray):  # at most one token each, as in most steps
            outputs = np.where(tokens == NO_OUTPUT, NO_OUTPUT, 1).astype(np.int32)
            append(self.tokens, tokens[tokens != NO_OUTPUT])
            append(self.row_outputs, outputs)
            return
        lists = [
            NO_TOKENS if token is None else [token] if isinstance(token, int) else token for token in tokens
        ]
        self.tokens.extend(chain.from_iterable(lists))
        self.row_outputs.extend([NO_OUTPUT if token is NO_TOKENS else len(token) for token in lists])

    def _events(self, runs: Sequence[Any]) -> int:
        """Append runs of events; returns the number of events."""
        blocks = [run[2] for run in runs]
        lengths = [len(block) for block in blocks]
        self.run_kind.fromlist([KIND_CODES[run[0]] for run in runs])
        self.run_request.fromlist([NO_REQUEST if run[1] is None else run[1] for run in runs])
        self.run_length.fromlist(lengths)
        self.event_block.fromlist(list(chain.from_iterable(blocks)))
        for run in runs:
            if run[0] == "seal":
                self.seal_hash += bytes.fromhex("".join(run[3]))
        return sum(lengths)


def scan_file(path: Path, max_text_bytes: int) -> list[Scan]:
    """Read up to `max_text_bytes` of a trace's text with one or two processes; scans in file order.

    The last scan's `last_offset` is the end of the part that was read.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        stop = _end_of_window(data, max_text_bytes)
        middle = member_near(data, stop // 2) if stop > PARALLEL_BYTES and can_fork() else stop
        if not 0 < middle < stop:
            return [_scan(data, 0, stop)]
    with get_context("fork").Pool(1) as pool:
        second = pool.apply_async(_scan_share, (path, middle, stop))
        first = _scan_share(path, 0, middle)
        if first.damage or first.malformed:
            return [first]
        if first.last_offset != middle:  # the bytes of MEMBER_START occurred inside a member
            return [_scan_share(path, 0, stop)]
        return [first, second.get()]


def _end_of_window(data: mmap.mmap, max_text_bytes: int) -> int:
    """The position at which to stop, so that about `max_text_bytes` of text are read.

    The amount of text is estimated from members all over the file: prompts compress worse than decodes.
    """
    packed = text = 0
    for place in range(NUM_SAMPLES):
        start = member_near(data, len(data) * place // NUM_SAMPLES)
        for member in members(data, start, min(start + 1, len(data))):
            packed, text = packed + member.end - member.offset, text + len(member.text)
    fraction = max_text_bytes * packed / max(1, text * len(data))
    return len(data) if not packed or fraction >= 1 else member_near(data, int(len(data) * fraction))


def _scan_share(path: Path, start: int, stop: int) -> Scan:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _scan(data, start, stop)


def _scan(data: mmap.mmap, start: int, stop: int) -> Scan:
    scan, records = Scan(last_offset=start), RecordReader()
    gc.disable()  # a step's record is a thousand small lists, none of them in a cycle
    for member in members(data, start, stop):
        position = 0
        for line in member.text.split(b"\n")[:-1]:
            try:
                scan.take(records.read(line), member.offset, position)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                scan.malformed = f"{type(error).__name__}: {error}"
                return scan
            scan.num_lines += 1
            position += len(line) + 1
        if position < len(member.text) and member.end < len(data):
            raise TraceError("a record spans two gzip members: the file was recompressed by another tool")
        scan.num_bytes += len(member.text)
        scan.last_offset = member.end
        scan.damage = member.damage
    return scan
