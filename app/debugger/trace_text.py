"""Read the text of a trace file in pieces, never the whole file at once.

A trace is a series of gzip members, one for each flush of its writer, and each member can be read alone.
`members` iterates over them; `StepLines` returns the line of any step.
"""

from __future__ import annotations

import mmap
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from engine.trace.format import TRUNCATED, TraceError

CHUNK_BYTES = 1 << 16
MAX_MEMBER_BYTES = 1 << 26
"""Upper bound on the text of one member; an engine writes a few megabytes."""
KEPT_MEMBERS = 4
MEMBER_START = bytes.fromhex("1f8b0800000000000403")
"""The first bytes of a member at the writer's settings: zlib level 1, no time, Unix. They occur elsewhere with a
probability of 2**-80 per byte; a member with another start is merely not found."""


class Member(NamedTuple):
    """One gzip member."""

    offset: int
    """Its start in the file."""
    end: int
    text: bytes
    damage: str
    """Damage of the member; empty if it is not."""


def members(data: mmap.mmap | bytes, start: int, stop: int) -> Iterator[Member]:
    """Yield the members that begin in [start, stop); the first begins at `start`.

    A truncated member yields what it holds, one with a wrong checksum nothing; both are the last.
    """
    position = start
    while position < stop:
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        parts: list[bytes] = []
        offset, size = position, 0
        try:
            while not member.eof and position < len(data):
                chunk = data[position : position + CHUNK_BYTES]
                parts.append(member.decompress(chunk, MAX_MEMBER_BYTES))
                position += len(chunk) - len(member.unused_data)
                size += len(parts[-1])
                if size > MAX_MEMBER_BYTES or member.unconsumed_tail:
                    raise TraceError(
                        f"a gzip member of this file holds more than {MAX_MEMBER_BYTES >> 20} MB of text, so it was "
                        "recompressed by another tool: open the file that the engine wrote"
                    )
        except zlib.error:
            yield Member(offset, position, b"", f"damaged near byte {position}")
            return
        yield Member(offset, position, b"".join(parts), "" if member.eof else "truncated")


def member_near(data: mmap.mmap | bytes, position: int) -> int:
    """Start of the next member at or after a position; the file's length if there is none."""
    start = data.find(MEMBER_START, position)
    return len(data) if start < 0 else start


class StepLines(Sequence[bytes]):
    """The lines of a trace's steps, read from the file on demand."""

    def __init__(self, path: Path, member: NDArray[np.int64], start: NDArray[np.int64]) -> None:
        self._path = path
        self._member = member
        """Per line, the start of its member in the file."""
        self._start = start
        """Per line, its start in the text of its member."""
        self._texts: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._member)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.line_at(int(self._member[index]), int(self._start[index]))

    def line_at(self, member: int, start: int) -> bytes:
        """The line that begins at `start` in the text of the member at `member`."""
        text = self._text(member)
        return text[start : text.index(b"\n", start)]

    def _text(self, offset: int) -> bytes:
        text = self._texts[offset] = self._texts.pop(offset, b"") or self._read(offset)
        if len(self._texts) > KEPT_MEMBERS:
            self._texts.popitem(last=False)
        return text

    def _read(self, offset: int) -> bytes:
        try:
            with open(self._path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                member = next(members(data, offset, offset + 1))
        except (OSError, ValueError) as error:
            raise TraceError(f"{self._path} can no longer be read: {error}. Open the run again") from error
        if not member.text:
            raise TraceError(f"{self._path} has changed since it was opened: open the run again")
        return member.text


def first_line(path: Path) -> bytes:
    """The first line of a trace. Raises TraceError if the file is not gzipped."""
    try:
        with open(path, "rb") as file:
            data = file.read(CHUNK_BYTES)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        text = unpacker.decompress(data, MAX_MEMBER_BYTES)
    except zlib.error as error:
        raise TraceError(
            f"{path} is not a trace: it does not begin like a gzip file. `prep trace record` makes traces"
        ) from error
    if b"\n" not in text and not unpacker.eof:
        raise TraceError(TRUNCATED.format(path))
    return text.partition(b"\n")[0]
