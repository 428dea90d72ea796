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


class AgingQueue:
    """Waiting requests by key = arrival + handicap."""

    def __init__(self, level: float = 10.0, token: float = 0.0, longest: float = 60.0) -> None:
        """Seconds of handicap: per priority level, per prompt token, and at most. Raises ValueError below 0."""
        raise NotImplementedError("write AgingQueue")

    def push(self, request_id: str, priority: int, arrival: float, tokens: int) -> float:
        """Add a waiting request and return its key.

        handicap = level * priority + token * tokens, but at least 0 and at most `longest`. Any integer is a priority.
        A preempted request is pushed again with the arguments of its arrival. Raises ValueError if the id is waiting;
        such a call changes nothing.
        """
        raise NotImplementedError("write push")

    def peek(self) -> str:
        """Return the id with the smallest key, and leave it in the queue. Equal keys: the earlier arrival, then the
        smaller id (as a string). Raises IndexError if the queue is empty. Cost: O(log n), amortised."""
        raise NotImplementedError("write peek")

    def pop(self) -> str:
        """Remove and return what `peek` returns. Raises IndexError if the queue is empty. O(log n), amortised."""
        raise NotImplementedError("write pop")

    def remove(self, request_id: str) -> bool:
        """Remove a request whose client has left. Return False if it does not wait, which is no error. O(1)."""
        raise NotImplementedError("write remove")

    def change(self, request_id: str, priority: int) -> float:
        """Give a waiting request another priority; arrival and tokens stay. Return its new key.

        Raises KeyError if it does not wait.
        """
        raise NotImplementedError("write change")

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        raise NotImplementedError("write __len__")
