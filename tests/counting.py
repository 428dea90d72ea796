"""Count work instead of measuring time: the same on every machine, busy or not."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def instructions(act: Callable[[], object]) -> int:
    """Return how many instructions of Python `act` runs, with all that it calls.

    One that enters C counts once, whatever C does: `peak_bytes` shows copies and sorts, an `Ordered` comparisons.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    with _no_collection():
        sys.settrace(trace)
        try:
            act()
        finally:
            sys.settrace(before)
    return count


def peak_bytes(act: Callable[[], object]) -> int:
    """Return how many bytes of Python's memory `act` holds at most, beyond those that were held before."""
    with _no_collection():
        tracemalloc.start()
        try:
            act()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


class Ordered(tuple[Any, ...]):
    """A sort key whose comparisons run in Python, so that `instructions` counts those of a sort, a heap or `min`."""

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return tuple.__lt__(self, other)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out: what runs then, the callbacks of libraries included, is none of an act's work."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
