"""Share the requests out among the steps that a pipeline computes at the same time.

    4 requests, 3 stages:   2 rows | 1 row | 1 row      not   2 | 2 | 0, which leaves a stage idle for ever

A request is in one step at a time, so a step that took more than its share would leave another step empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import SchedulerConfig
from engine.core.request import Request


def most_rows(config: SchedulerConfig, running: Sequence[Request], num_requests: int) -> tuple[int, int]:
    """Return upper bounds on the next step's rows: on those of running requests, and on all.

    A bound is an equal share for each step, rounded up, but never so large that a step without rows would get none.
    Running requests are shared out alone, too: waiting ones (`num_requests` counts both) may find no blocks. vLLM has
    no such bound: its first step takes every request that fits.
    """
    if (depth := config.max_concurrent_batches) == 1:
        return num_requests, num_requests
    steps = [request.in_flight_step for request in running if request.in_flight_step >= 0]
    num_empty = max(1, depth - len(set(steps)))

    def share(count: int) -> int:
        return min(-(-count // depth), -(-(count - len(steps)) // num_empty))

    return share(len(running)), share(max(len(running), min(num_requests, config.max_num_seqs)))
