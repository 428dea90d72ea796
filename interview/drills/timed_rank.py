"""Workers of tensor parallelism that write their own times, as a collective's flight recorder does."""

from __future__ import annotations

import sys
import time
from typing import Any

from engine.core.sched_output import SchedulerOutput
from engine.exec.multiproc import RankWorker
from engine.parallel import Group


class TimedRankWorker(RankWorker):
    """A rank that writes how long a step took it outside of collectives, once per second."""

    slow = (-1, 0.0)
    """Rank and the milliseconds that it takes longer."""

    def __init__(self, channel: Any, rank: int, *args: Any, **options: Any) -> None:
        super().__init__(channel, rank, *args, **options)
        self._rank, self._told, self._waited = rank, time.monotonic(), 0.0
        self._times: list[float] = []
        reduce = Group.all_reduce

        def timed(group: Group, tensor: Any) -> Any:
            start = time.monotonic()
            reduced = reduce(group, tensor)
            self._waited += time.monotonic() - start
            return reduced

        Group.all_reduce = timed  # type: ignore[method-assign,assignment]

    def execute(self, out: SchedulerOutput, bitmask: Any) -> Any:
        start, self._waited = time.monotonic(), 0.0
        slow, ms = self.slow
        if slow == self._rank:
            time.sleep(ms / 1000)
        output = super().execute(out, bitmask)
        now = time.monotonic()
        self._times.append(now - start - self._waited)
        if now - self._told > 1:
            middle = sorted(self._times)[len(self._times) // 2]
            print(
                f"rank {self._rank}: {1000 * middle:.1f} ms of a step outside of all-reduce", file=sys.stderr
            )
            self._told, self._times = now, []
        return output


class SlowRankWorker(TimedRankWorker):
    """Rank 1 takes 25 ms longer."""

    slow = (1, 25.0)
