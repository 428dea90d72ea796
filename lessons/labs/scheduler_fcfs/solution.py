"""Solution of lab scheduler-fcfs. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

Row = tuple[str, int, int]


@dataclass(slots=True)
class Job:
    """A request: its known and computed tokens, and the blocks that it owns."""

    request_id: str
    known: int
    computed: int = 0
    blocks: int = 0


class Scheduler:
    def __init__(
        self, max_num_batched_tokens: int, max_num_seqs: int, num_blocks: int, block_size: int
    ) -> None:
        self.max_num_batched_tokens, self.max_num_seqs = max_num_batched_tokens, max_num_seqs
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = num_blocks
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        """In order of admission, which is the order of arrival."""

    @property
    def num_free(self) -> int:
        return self.free

    def add(self, request_id: str, num_tokens: int, max_tokens: int) -> None:
        if any(job.request_id == request_id for job in [*self.waiting, *self.running]):
            raise ValueError(f"request {request_id!r} is unfinished")
        if self._blocks_for(num_tokens + max_tokens - 1) > self.num_blocks:
            raise ValueError(f"request {request_id!r} may need more than {self.num_blocks} blocks")
        self.waiting.append(Job(request_id, num_tokens))

    def schedule(self) -> tuple[list[Row], list[str]]:
        rows: list[Row] = []
        preempted: list[str] = []
        budget = self.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget:
            job = self.running[index]
            count = min(job.known - job.computed, budget)
            if not self._make_room(job, self._blocks_for(job.computed + count), preempted):
                break
            rows.append(self._compute(job, count))
            budget -= count
            index += 1
        while self.waiting and budget and not preempted and len(self.running) < self.max_num_seqs:
            job = self.waiting[0]
            need = self._blocks_for(job.known)
            if need > self.free:
                break
            self.running.append(self.waiting.popleft())
            self._take(job, need)
            count = min(job.known, budget)
            rows.append(self._compute(job, count))
            budget -= count
        return rows, preempted

    def update(self, sampled: list[str], ended: list[str]) -> None:
        for job in self.running:
            job.known += job.request_id in sampled
        for job in self.running:
            if job.request_id in ended:
                self._take(job, 0)
        self.running = [job for job in self.running if job.request_id not in ended]
        self.waiting = deque(job for job in self.waiting if job.request_id not in ended)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _take(self, job: Job, blocks: int) -> None:
        """Let a request own this many blocks in all."""
        self.free -= blocks - job.blocks
        job.blocks = blocks

    def _compute(self, job: Job, count: int) -> Row:
        start = job.computed
        job.computed += count
        return job.request_id, start, count

    def _make_room(self, job: Job, need: int, preempted: list[str]) -> bool:
        """Let a running request own `need` blocks, preempting others; False if it was preempted itself."""
        need = max(need, job.blocks)
        while need - job.blocks > self.free:
            victim = self.running.pop()
            self._take(victim, 0)
            victim.computed = 0
            self.waiting.appendleft(victim)
            preempted.append(victim.request_id)
            if victim is job:
                return False
        self._take(job, need)
        return True
