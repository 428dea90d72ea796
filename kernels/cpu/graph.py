"""A sequence of kernel calls, recorded once and replayed without Python: see `graph.h`.

    graph, logits = CPUGraph.record(lambda: model(static_ids), arena)
    static_ids.copy_(ids); graph.replay()                # logits now holds the new result

Only the C++ kernels are recorded. A torch operation in between computes something while recording and nothing when
replayed, so whoever records must compare a replay with an ordinary run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeVar

from kernels.cpu.build import function
from kernels.cpu.memory import Arena, allocating_from

T = TypeVar("T")

_begin = function("graph_begin", "")
_end = function("graph_end", "p", returns="p")
_replay = function("graph_replay", "p")
_destroy = function("graph_destroy", "p")


class CPUGraph:
    """What `record` saw. The memory it works on must outlive it: inputs, weights, and its arena."""

    def __init__(self, handle: int, num_calls: int, arena: Arena) -> None:
        self._handle = handle
        self._arena = arena
        self.num_calls = num_calls

    @classmethod
    def record(cls, run: Callable[[], T], arena: Arena) -> tuple[CPUGraph, T]:
        """Run once and keep every kernel call; the second result (tensors) is where each replay leaves its own."""
        num_calls = ctypes.c_int64()
        _begin()
        try:
            with allocating_from(arena):
                result = run()
        finally:
            graph = cls(_end(ctypes.addressof(num_calls)), num_calls.value, arena)
        return graph, result

    def replay(self) -> None:
        _replay(self._handle)

    def __del__(self) -> None:
        _destroy(self._handle)
