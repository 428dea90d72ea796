"""Tensor-parallel ranks as threads, with an all-reduce that counts: the communication without the processes.

group = RankGroup(2)
group.run(lambda rank, all_reduce: all_reduce(partial_result_of(rank)))     results in the order of the ranks
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TypeVar

from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
Result = TypeVar("Result")


class RankGroup:
    """Runs a function once per rank. As in `engine/parallel.py`, all ranks must call `all_reduce` equally often."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_calls = 0
        """All-reduces so far."""
        self.num_bytes = 0
        """Bytes that each rank contributed to them."""
        self._parts: list[Tensor | None] = [None] * size
        self._sum: Tensor | None = None
        self._all_here = Barrier(size, action=self._add)
        self._all_read = Barrier(size)

    def run(self, function: Callable[[int, AllReduce], Result]) -> list[Result]:
        """Call function(rank, all_reduce) on every rank at once."""
        with ThreadPoolExecutor(self.size) as pool:
            return list(
                pool.map(lambda rank: function(rank, partial(self._all_reduce, rank)), range(self.size))
            )

    def _all_reduce(self, rank: int, x: Tensor) -> Tensor:
        self._parts[rank] = x
        self._all_here.wait(timeout=20)
        assert self._sum is not None
        total = self._sum.clone()
        self._all_read.wait(timeout=20)
        return total

    def _add(self) -> None:
        parts = [part for part in self._parts if part is not None]
        self._sum = sum(parts[1:], start=parts[0])
        self.num_calls += 1
        self.num_bytes += parts[0].nbytes
