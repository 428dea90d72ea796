"""A scheduler with a priority queue."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field


@dataclass(eq=False)
class Sequence:
    request_id: str
    prompt: str
    priority: int = 0
    arrival_time: float = field(default_factory=time.time)
    is_finished: bool = False

    def __lt__(self, other: Sequence) -> bool:
        return (-self.priority, self.arrival_time) < (-other.priority, other.arrival_time)


class SimpleScheduler:
    def __init__(self, max_batch_size: int = 4) -> None:
        self.max_batch_size = max_batch_size
        self.waiting: list[Sequence] = []
        self.running: dict[str, Sequence] = {}

    def add_sequence(self, sequence: Sequence) -> None:
        heapq.heappush(self.waiting, sequence)

    def schedule(self) -> list[Sequence]:
        self._drop_finished()
        for sequence in self._select():
            self.running[sequence.request_id] = sequence
        return list(self.running.values())

    def complete_sequence(self, request_id: str) -> None:
        if request_id in self.running:
            self.running[request_id].is_finished = True

    def _drop_finished(self) -> None:
        for request_id in [r for r, sequence in self.running.items() if sequence.is_finished]:
            del self.running[request_id]

    def _select(self) -> list[Sequence]:
        selected = []
        while self.waiting and len(self.running) < self.max_batch_size:
            selected.append(heapq.heappop(self.waiting))
        return selected
