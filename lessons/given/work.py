"""In a learner's process: count the work of a call, for bounds such as O(1). No clock is read.

Work is bytecode instructions of Python, plus what runs in C and grows with its input: comparisons and hashes of ids
(they are counted strings), items that min, sum, sorted and their like walk over, containers that a method of theirs
searches or copies, and memory that is allocated.
"""

from __future__ import annotations

import builtins
import sys
import tracemalloc
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

WALKS = ("min", "max", "sum", "any", "all", "sorted")
"""Functions that walk over their argument."""
SEARCHES = {
    "clear", "copy", "count", "difference", "find", "index", "insert", "intersection", "remove", "reverse", "rfind",
    "rindex", "sort", "union",
}  # fmt: skip
"""Methods of containers and texts that walk over them."""
BYTES_PER_ITEM = 8
CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, str, bytes)


class Name(str):
    """A string whose comparisons and hashes run in Python, so that they count."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True

    def __lt__(self, other: str) -> bool:
        return str.__lt__(self, other)

    def __gt__(self, other: str) -> bool:
        return str.__gt__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def costs(target: Any, calls: list[tuple[Any, ...]], last: int) -> list[int]:
    """Make calls of an object, (name, arguments), or read attributes, (name,); return the work of each of the last."""
    module = sys.modules[type(target).__module__]
    before = {name: vars(module)[name] for name in WALKS if name in vars(module)}
    vars(module).update({name: _walking(getattr(builtins, name)) for name in WALKS if name not in before})
    try:
        first = len(calls) - last
        for call in calls[:first]:
            _make(target, *_named(call))
        return [_work(target, *_named(call)) for call in calls[first:]]
    finally:
        for name in set(WALKS) - set(before):
            del vars(module)[name]


def _named(value: Any) -> Any:
    """Return a value with counted strings."""
    if type(value) is str:
        return Name(value)
    if type(value) in (list, tuple):
        return type(value)(map(_named, value))
    return value


def _make(target: Any, name: str, *args: Any) -> None:
    found = getattr(target, str(name))
    if callable(found):
        found(*args)


def _walking(function: Any) -> Any:
    """Return a builtin function that takes the items of what it walks over one by one, in Python.

    That is the first argument, but not of `max(a, b)`, which compares its arguments.
    """

    def walk(*args: Any, **keywords: Any) -> Any:
        walks = len(args) == 1 or (function is sum and bool(args))
        if walks and _is_walked(args[0]):
            args = (_one_by_one(args[0]), *args[1:])
        return function(*args, **keywords)

    return walk


def _is_walked(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _one_by_one(items: Iterable[Any]) -> Iterator[Any]:
    yield from (item for item in items)


def _work(target: Any, name: str, *args: Any) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    def profile(_: FrameType, event: str, function: Any) -> None:
        nonlocal count
        owner: Any = getattr(function, "__self__", None)
        is_container = isinstance(owner, CONTAINERS)
        if event == "c_call" and is_container and function.__name__ in SEARCHES:
            count += len(owner)

    tracemalloc.start()
    began = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        _make(target, name, *args)
    finally:
        sys.settrace(None)
        sys.setprofile(None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return count + max(0, peak - began) // BYTES_PER_ITEM
