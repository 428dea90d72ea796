"""Lab scheduler-fcfs: choose what every request computes in the next step.

The seam is the scheduler (engine/core/scheduler.py). There is no prefill phase and no decode phase. A request has known
tokens, the prompt and the output so far, and the first `computed` of them have KV. Each step computes more of the
missing ones, within one token budget. That rule gives prefill, chunked prefill, decode, and recomputation after a
preemption. Sources: Orca (Yu et al., OSDI 2022), section 3; vLLM v1/core/sched/scheduler.py, `schedule`.

    budget 8                    step 0      step 1      step 2       rows are (request, start, count)
    a: prompt of 3 tokens      (a, 0, 3)   (a, 3, 1)   (a, 4, 1)     its prompt, then one token a step
    b: prompt of 9 tokens      (b, 0, 5)   (b, 5, 4)   (b, 9, 1)     its prompt in two chunks
    c: prompt of 6 tokens       waits      (c, 0, 3)   (c, 3, 3)     what a and b leave of the budget

Blocks are only counted here: n tokens need ceil(n / block_size) blocks, whichever these are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

Row = tuple[str, int, int]
"""(request id, position of the first token to compute, number of tokens)."""


@dataclass(slots=True)
class Job:
    """A request: its known and computed tokens, and the blocks that it owns."""

    request_id: str
    known: int
    computed: int = 0
    blocks: int = 0


class Scheduler:
    """Continuous batching, first come, first served; preemption by recomputation."""

    def __init__(
        self, max_num_batched_tokens: int, max_num_seqs: int, num_blocks: int, block_size: int
    ) -> None:
        """All arguments are at least 1.

        max_num_batched_tokens: token budget of a step. max_num_seqs: most requests that run at once.
        num_blocks: blocks of the KV cache, all usable. block_size: tokens in a block.
        """
        self.max_num_batched_tokens, self.max_num_seqs = max_num_batched_tokens, max_num_seqs
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = num_blocks
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        """In order of admission, which is the order of arrival."""

    @property
    def num_free(self) -> int:
        """Number of blocks that no request owns."""
        return self.free

    def add(self, request_id: str, num_tokens: int, max_tokens: int) -> None:
        """Append a request to the queue.

        num_tokens: length of its prompt; max_tokens: most tokens that it generates. Both are at least 1.
        Raises ValueError, and changes nothing, if a request of this id waits or runs, or if the request could never
        finish: its prompt and all its output but the last token, which is never computed, need more than num_blocks
        blocks. (The caller decides when a request ends, and says so in `update`.)
        """
        if any(job.request_id == request_id for job in [*self.waiting, *self.running]):
            raise ValueError(f"request {request_id!r} is unfinished")
        if self._blocks_for(num_tokens + max_tokens - 1) > self.num_blocks:
            raise ValueError(f"request {request_id!r} may need more than {self.num_blocks} blocks")
        self.waiting.append(Job(request_id, num_tokens))

    def schedule(self) -> tuple[list[Row], list[str]]:
        """Plan a step. Return its rows, and the ids of the requests that it preempted, both in order of decision.

        1. Running requests, in order of admission, while budget is left: each computes its missing tokens, as many as
           the budget left allows. It needs blocks for all tokens up to the end of its row, and takes those it lacks.
        2. If too few blocks are free, the running request that was admitted last is preempted: it loses all its blocks,
           none of its tokens is computed any more, its known tokens stay, and it becomes the first of the queue. This
           repeats until the blocks suffice. If the request itself is the last, it is preempted and has no row.
        3. Then waiting requests, in queue order, while budget is left and fewer than max_num_seqs requests run. A
           request starts if enough blocks are free for all its known tokens, and takes them at once. It computes its
           tokens from 0 on, as many as the budget left allows. The first that lacks blocks ends the admission: none
           overtakes it. A step that has preempted a request admits none.

        The tokens of the rows count as computed from now on. `update` follows before the next call.
        """
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
        """Apply the results of a step.

        sampled: requests that have one known token more. They are those whose rows reached their last known token.
        ended: requests that leave, finished or aborted, whether they wait or run. Their blocks become free. An id may
        be in both lists, and an unknown id in `ended` is no error.
        """
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
