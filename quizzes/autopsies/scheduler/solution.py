"""A scheduler that counts slots and blocks while it admits."""

import heapq
from itertools import count


class Sequence:
    def __init__(self, request_id: str, num_tokens: int, priority: int = 0) -> None:
        self.request_id = request_id
        self.num_tokens = num_tokens
        self.priority = priority


class SimpleScheduler:
    def __init__(self, max_batch_size: int = 4, num_blocks: int = 1000, block_size: int = 16) -> None:
        self.max_batch_size = max_batch_size
        self.num_blocks = self.free_blocks = num_blocks
        self.block_size = block_size
        self.waiting: list[tuple[int, int, Sequence]] = []
        self.known: set[str] = set()
        self.running: dict[str, Sequence] = {}
        self.arrivals = count()

    def add_sequence(self, sequence: Sequence) -> None:
        if sequence.request_id in self.known:
            raise ValueError(f"{sequence.request_id!r} is not finished yet")
        if self._blocks(sequence) > self.num_blocks:
            raise ValueError(f"{sequence.num_tokens} tokens never fit into {self.num_blocks} blocks")
        self.known.add(sequence.request_id)
        heapq.heappush(self.waiting, (sequence.priority, next(self.arrivals), sequence))

    def schedule(self) -> list[Sequence]:
        while self.waiting and len(self.running) < self.max_batch_size:
            sequence = self.waiting[0][2]
            if self._blocks(sequence) > self.free_blocks:
                break
            heapq.heappop(self.waiting)
            self.free_blocks -= self._blocks(sequence)
            self.running[sequence.request_id] = sequence
        return list(self.running.values())

    def complete_sequence(self, request_id: str) -> None:
        sequence = self.running.pop(request_id, None)
        if sequence is not None:
            self.free_blocks += self._blocks(sequence)
            self.known.discard(request_id)

    def abort(self, request_id: str) -> bool:
        if request_id not in self.known:
            return False
        if request_id in self.running:
            self.complete_sequence(request_id)
            return True
        self.waiting = [entry for entry in self.waiting if entry[2].request_id != request_id]
        heapq.heapify(self.waiting)
        self.known.discard(request_id)
        return True

    def _blocks(self, sequence: Sequence) -> int:
        return -(-sequence.num_tokens // self.block_size)
