"""A sequence of kernel calls, recorded once and replayed without Python: see `graph.h`.

    graph, logits = CPUGraph.record(lambda: model(static_ids), arena)
    static_ids.copy_(ids); graph.replay()                # logits now holds the new result

Only the C++ kernels are recorded. A torch operation in between computes while recording and does nothing in a replay,
so the caller must compare a replay with an ordinary run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeVar

from kernels.cpu.build import function
from kernels.cpu.memory import Arena, allocating_from

T = TypeVar("T")


class CPUGraph:
    """Recorded kernel calls. The memory they work on must outlive the graph: inputs, weights and its arena."""

    def __init__(self, handle: int, num_calls: int, arena: Arena) -> None:
        self._handle = handle
        self._arena = arena
        self._replay = function("graph_replay", "p")
        self._destroy = function("graph_destroy", "p")
        self.num_calls = num_calls

    @classmethod
    def record(cls, run: Callable[[], T], arena: Arena) -> tuple[CPUGraph, T]:
        """Run once and keep every kernel call. A replay leaves its results in the tensors of the second value.

        Raises ArenaFull if the results do not fit, BuildError if there are no C++ kernels.
        """
        begin, end = function("graph_begin", ""), function("graph_end", "p", returns="p")
        num_calls = ctypes.c_int64()
        begin()
        try:
            with allocating_from(arena):
                result = run()
        finally:
            graph = cls(end(ctypes.addressof(num_calls)), num_calls.value, arena)
        return graph, result

    def replay(self) -> None:
        """Make the recorded calls again, on the present content of their inputs."""
        self._replay(self._handle)

    def __del__(self) -> None:
        self._destroy(self._handle)
