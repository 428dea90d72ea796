"""Solution of lab priority-aging. The docstrings of the stub state the contract."""

from __future__ import annotations

import heapq

Entry = tuple[float, float, str]
"""(key, arrival, id)."""


class AgingQueue:
    def __init__(self, level: float = 10.0, token: float = 0.0, longest: float = 60.0) -> None:
        if min(level, token, longest) < 0:
            raise ValueError(f"seconds cannot be negative, got {level}, {token} and {longest}")
        self.level, self.token, self.longest = level, token, longest
        self.heap: list[Entry] = []
        """Entries of waiting requests, and dead ones of requests that left or changed."""
        self.live: dict[str, Entry] = {}
        self.tokens: dict[str, int] = {}

    def push(self, request_id: str, priority: int, arrival: float, tokens: int) -> float:
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
        while self.heap and self.live.get(self.heap[0][2]) != self.heap[0]:
            heapq.heappop(self.heap)
        if not self.heap:
            raise IndexError("the queue is empty")
        return self.heap[0][2]

    def pop(self) -> str:
        request_id = self.peek()
        heapq.heappop(self.heap)
        self._forget(request_id)
        return request_id

    def _forget(self, request_id: str) -> None:
        del self.live[request_id], self.tokens[request_id]

    def remove(self, request_id: str) -> bool:
        if request_id not in self.live:
            return False
        self._forget(request_id)
        return True

    def change(self, request_id: str, priority: int) -> float:
        _, arrival, _ = self.live[request_id]
        return self._enter(request_id, priority, arrival)

    def __len__(self) -> int:
        return len(self.live)
