"""Lab priority-aging: urgent requests first, and no request waits for ever.

The seam is `Scheduler.waiting` of engine/core/scheduler.py, a queue of sort keys (engine/core/queues.py). vLLM's policy
`priority` orders by (priority, arrival, id), the lower number first: while urgent requests keep coming, others starve.
With aging, each second of waiting counts. Every request gets a handicap on arrival, in seconds, and uses it up by
waiting. The request with the least handicap left goes first.

    handicap left
    at 100 s:   a  priority 2, waits since  80 s    20 s - 20 s =  0 s    first
                b  priority 0, waits since  98 s     0 s -  2 s = -2 s    before a: it has 2 s of credit
                c  priority 1, waits since  95 s    10 s -  5 s =  5 s    after both

All requests age at the same speed, so the order of two requests never changes: one key for each is enough. The
smallest key goes first. (Sources: vLLM v1/request.py, `Request.__lt__`; aging as in Silberschatz, Operating System
Concepts, section on priority scheduling.)
"""

from __future__ import annotations

import heapq

Entry = tuple[float, float, str]  # (key, arrival, id)


class AgingQueue:
    """Waiting requests by key = arrival + handicap."""

    def __init__(self, level: float = 10.0, token: float = 0.0, longest: float = 60.0) -> None:
        """Seconds of handicap: per priority level, per prompt token, and at most. Raises ValueError below 0."""
        if min(level, token, longest) < 0:
            raise ValueError(f"seconds cannot be negative, got {level}, {token} and {longest}")
        self.level, self.token, self.longest = level, token, longest
        self.heap: list[Entry] = []
        """Entries of waiting requests, and dead ones of requests that left or changed."""
        self.live: dict[str, Entry] = {}
        self.tokens: dict[str, int] = {}

    def push(self, request_id: str, priority: int, arrival: float, tokens: int) -> float:
        """Add a waiting request and return its key.

        handicap = level * priority + token * tokens, but at least 0 and at most `longest`. Any integer is a priority.
        A preempted request is pushed again with the arguments of its arrival. Raises ValueError if the id is waiting;
        such a call changes nothing.
        """
        if request_id in self.live:
            raise ValueError(f"request {request_id!r} waits already")
        self.tokens[request_id] = tokens
        return self._enter(request_id, priority, arrival)

    def _enter(self, request_id: str, priority: int, arrival: float) -> float:
        handicap = self.level * priority + self.token * self.tokens[request_id]
        key = arrival + min(self.longest, max(0.0, handicap))
        self.live[request_id] = entry = (key, arrival, request_id)
        heapq.heappush(self.heap, entry)
        return key

    def peek(self) -> str:
        """Return the id with the smallest key, and leave it in the queue. Equal keys: the earlier arrival, then the
        smaller id (as a string). Raises IndexError if the queue is empty. Cost: O(log n), amortised."""
        while self.heap and self.live.get(self.heap[0][2]) != self.heap[0]:
            heapq.heappop(self.heap)
        if not self.heap:
            raise IndexError("the queue is empty")
        return self.heap[0][2]

    def pop(self) -> str:
        """Remove and return what `peek` returns. Raises IndexError if the queue is empty. O(log n), amortised."""
        request_id = self.peek()
        heapq.heappop(self.heap)
        self._forget(request_id)
        return request_id

    def _forget(self, request_id: str) -> None:
        del self.live[request_id], self.tokens[request_id]

    def remove(self, request_id: str) -> bool:
        """Remove a request whose client has left. Return False if it does not wait, which is no error. O(1)."""
        if request_id not in self.live:
            return False
        self._forget(request_id)
        return True

    def change(self, request_id: str, priority: int) -> float:
        """Give a waiting request another priority; arrival and tokens stay. Return its new key.

        Raises KeyError if it does not wait.
        """
        _, arrival, _ = self.live[request_id]
        return self._enter(request_id, priority, arrival)

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self.live)
