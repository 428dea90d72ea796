"""Check C++ kernels of another machine with this machine's cases: no Python there, no C++ kernels here.

    record.py record CALLS           run the checks; each call of a kernel is written to CALLS, and computes nothing
    replay CALLS RESULTS             on the other machine: the same calls, and what their memory holds afterwards
    record.py judge CALLS RESULTS    run the checks again; each call takes its results from RESULTS

So the reference, the tolerances and the law that a row has the same bits alone and in a batch are those of
`kernels.check`. stdin: a line for each number that the kernels tell, such as `gemm_lanes 4`. `judge` prints a line
`OP DTYPE PASSED` for each operation up to the first one that fails, with its failures.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, BinaryIO

import torch

from kernels.check import run
from kernels.cpu import build
from kernels.registry import IMPLEMENTATIONS
from tests.kernels.cpu_mutants import FLOATS

Span = tuple[int, int]
"""Address and length of a piece of memory."""


def spans() -> list[Span]:
    """Return all memory of tensors and of ctypes arrays that exist now."""
    found = dict[int, int]()
    for each in gc.get_objects():
        if type(each) is torch.Tensor and each.device.type == "cpu":
            found[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        elif isinstance(each, ctypes.Array):
            found[ctypes.addressof(each)] = ctypes.sizeof(each)
    return sorted(span for span in found.items() if span[1])


class Memory:
    """The memory that one call reaches: from its arguments, and from addresses in ctypes arrays."""

    def __init__(self) -> None:
        self._all = spans()
        self.reached: list[Span] = []

    def place(self, address: int) -> tuple[int, int]:
        """Return (number of the buffer, offset in it)."""
        span = next((each for each in self._all if each[0] <= address < sum(each)), None)
        if span is None:
            raise LookupError(f"an argument points to memory of no tensor: {address:#x}")
        if span not in self.reached:
            self.reached.append(span)
        return self.reached.index(span), address - span[0]

    def addresses_in(self, buffer: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (buffer, offset, buffer that the word points to, offset there)."""
        start, size = self.reached[buffer]
        for offset in range(0, size - 7, 8):
            word = ctypes.c_int64.from_address(start + offset).value
            if any(first <= word < first + length for first, length in self._all):
                yield buffer, offset, *self.place(word)


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def block(content: bytes) -> bytes:
    return words(len(content)) + content + bytes(-len(content) % 8)


class Call:
    """A call of a kernel: its name, arguments and memory, in the layout of `replay.cpp`."""

    def __init__(self, name: str, signature: str, given: tuple[Any, ...]) -> None:
        self._name, memory = name, Memory()
        self._arguments = [
            self._argument(kind, value, memory) for kind, value in zip(signature, given, strict=True)
        ]
        arrays = range(len(memory.reached)) if name == "lora_expand" else ()
        self._inner = [each for buffer in arrays for each in memory.addresses_in(buffer)]
        self.spans = memory.reached

    @staticmethod
    def _argument(kind: str, value: Any, memory: Memory) -> tuple[int, int, int]:
        if kind == "f":
            return 1, struct.unpack("<i", struct.pack("<f", value))[0], 0
        return (2, *memory.place(value)) if kind == "p" and value else (0, int(value or 0), 0)

    def encode(self) -> bytes:
        contents = [block(ctypes.string_at(*span)) for span in self.spans]
        parts = [block(self._name.encode()), words(len(contents)), *contents]
        parts += [words(len(self._inner)), *(words(*each) for each in self._inner)]
        parts += [words(len(self._arguments)), *(words(*argument) for argument in self._arguments)]
        return b"".join(parts)


def recorder(calls: BinaryIO) -> Callable[[Call], None]:
    def keep(call: Call) -> None:
        calls.write(call.encode())

    return keep


def judge(results: BinaryIO) -> Callable[[Call], None]:
    def fill(call: Call) -> None:
        for address, size in call.spans:
            content = results.read(size)
            assert len(content) == size, "the file of results is cut short"
            ctypes.memmove(address, content, size)

    return fill


def replace_library(constants: dict[str, int], perform: Callable[[Call], None]) -> None:
    """Let every kernel be a call of `perform`, in all modules that are imported from now on."""

    def function(name: str, signature: str, returns: str | None = None) -> Callable[..., Any]:
        if returns:
            return lambda *_: constants[name]
        return lambda *given: perform(Call(name, signature, given))

    build.function = function
    build.load_library = cache(lambda: build.Library(None, None))


def check_all() -> Iterator[run.CheckReport]:
    for implementation in IMPLEMENTATIONS:
        if implementation.backend == "cpu":
            for dtype in FLOATS:
                gc.freeze()
                yield run.check(implementation.op, "cpu", dtype=dtype)


def main(mode: str, calls: str, results: str = "") -> None:
    constants = {name: int(value) for name, value in (line.split() for line in sys.stdin)}
    if mode == "record":
        # No result is right yet, and a case that is not right is not computed once more for a row alone.
        run.compare = lambda *_: 0.0
        run.equal_bits = lambda *_: True
        with open(calls, "wb") as file:
            replace_library(constants, recorder(file))
            for _ in check_all():
                pass
        return
    with open(results, "rb") as file:
        replace_library(constants, judge(file))
        for report in check_all():
            print(report.op, report.dtype, report.count("passed"))
            if (
                report.failures
            ):  # it made fewer calls than were recorded: the next results are not the next call's
                return print(report)
        assert not file.read(1), "there are more results than calls"


if __name__ == "__main__":
    main(*sys.argv[1:])
