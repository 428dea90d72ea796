"""Waiting queue and ordering policies.

A request gets its sort key once, when it is added. The same key orders the running requests, so "most important" means
the same in both places.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from engine.core.request import Request

SortKey = tuple[int, float, int]
"""(priority, arrival time, order of addition). Smaller is more important; keys are unique. Requests with the same first
element are equals (`engine/core/passed_over.py`)."""


def fcfs_key(request: Request, order: int) -> SortKey:
    """First come, first served; priorities are ignored."""
    return (0, request.arrival_time, order)


def priority_key(request: Request, order: int) -> SortKey:
    """Lower priority values first; first come, first served among equals."""
    return (request.priority, request.arrival_time, order)


POLICIES: dict[str, Callable[[Request, int], SortKey]] = {"fcfs": fcfs_key, "priority": priority_key}


class HeapQueue:
    """A heap of sort keys with lazy deletion.

        _heap    [k3, k7, k5, k9]          may still hold keys of removed requests
        _live    {k3: r3, k5: r5, k9: r9}  the requests in the queue

    push and pop are O(log n). remove is O(1): it deletes the entry and leaves its key in the heap, to be skipped later.
    The heap is rebuilt when most of its keys are dead, so memory stays bounded.
    """

    def __init__(self) -> None:
        self._heap: list[SortKey] = []
        self._live: dict[SortKey, Request] = {}

    def push(self, request: Request) -> None:
        self._live[request.sort_key] = request
        heapq.heappush(self._heap, request.sort_key)

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._live[request.sort_key]
        return request

    def peek(self) -> Request:
        while self._heap[0] not in self._live:
            heapq.heappop(self._heap)
        return self._live[self._heap[0]]

    def first(self, count: int) -> list[Request]:
        """Return up to `count` requests, most important first. Looks at all of them, without sorting them all."""
        return [self._live[key] for key in heapq.nsmallest(count, self._live)]

    def remove(self, request: Request) -> None:
        del self._live[request.sort_key]
        if len(self._heap) > 2 * len(self._live) + 16:
            self._heap = list(self._live)
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        """Yield requests, most important first. Sorts all of them: for debuggers and tests, not for the step loop."""
        return (self._live[key] for key in sorted(self._live))
