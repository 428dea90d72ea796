"""Run decode steps without planning every row, with exactly the state that planning would produce.

While every running request decodes, no request can be admitted and the free blocks suffice, the next step is certain.
If no request finishes either, so is the step after it, and k steps in a row can be applied at once:

    step          1    2    3    4   ...   k
    request a     t    t    t+B  t         t        t: one token, one slot     B: takes a block from the pool
    request b     t    t+P  t    t         t+B      P: publishes the block that it filled

Tokens are appended k at a time; blocks are taken and published in the order of the steps and, within one, of the
rows, because that order determines which block ids are allocated and which cached content is evicted. A single certain
step, in which requests may finish, has two halves, so that an observer in the middle of it sees the right state.
A test runs random workloads both ways and compares the whole state.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import count

from engine.core.kv_transfers import KVTransfers
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, Scheduled
from engine.core.scheduler import Scheduler
from engine.core.stats import StepStats

_TAKE, _PUBLISH = 0, 1


class FastForwardScheduler(Scheduler):
    """The scheduler with a fast path. `schedule` and `update` are inherited unchanged."""

    def steps_ahead(self, most: int) -> int:
        """Return how many of the next `most` steps are certain and finish no request.

        0: the next step is certain but may finish requests. -1: the next step is not certain.
        """
        running, waiting, window = self.running, self.waiting, self.kv.sliding_window
        if not running or len(running) > self.config.max_num_batched_tokens:
            return -1
        if self.kv.host is not None or KVTransfers.of(self) is not None:
            return -1  # planning a step decides what it copies
        for request in running:
            known = len(request.token_ids)
            if request.num_computed_tokens != known - 1 or request.spec_token_ids:
                return -1
            if known == len(request.prompt_token_ids):
                return -1  # the end of a prompt whose beginning was cached
            if (left := request.max_num_tokens - known - 1) < most:
                most = left
            if window is not None:
                unseen = (request.num_blocks_behind_window + 1) * self.kv.block_size
                most = min(most, unseen + window - known - 1)  # before the next block falls behind the window
        if waiting and not self._queue_stays():
            return -1
        return self._with_blocks(max(0, most))

    def _queue_stays(self) -> bool:
        """Whether waiting requests cannot start while the running ones only decode."""
        if len(self.running) >= min(self.config.max_num_seqs, self.config.max_num_batched_tokens):
            return True
        reserves_all = self.config.scheduler_reserve_full_isl and self.kv.sliding_window is None
        if not self.config.enable_chunked_prefill or not reserves_all:
            return False  # the head's need depends on the budget
        head = self.waiting.peek()
        hit = self.kv.match(head)
        missing = self.kv.num_missing(head, head.num_tokens, hit)
        # Free blocks only get fewer. A hit only gets longer if a running request publishes a block of the head's own.
        return missing > len(self.kv.pool.free) - self.kv.num_revived(hit) and not self._helps(head)

    def _helps(self, head: Request) -> bool:
        """Whether a running request shares all its published blocks with the start of `head`."""
        if not self.kv.enable_prefix_caching:
            return False
        ours = [(request.num_published_blocks, request.block_hashes) for request in self.running]
        hashes = head.block_hashes
        return any(at < len(hashes) and (at == 0 or own[at - 1] == hashes[at - 1]) for at, own in ours)

    def _with_blocks(self, most: int) -> int:
        free = len(self.kv.pool.free)
        if len(self.running) * (most // self.kv.block_size + 1) <= free:
            return most
        if self._blocks_taken_in(1) > free:
            return -1  # a request will be preempted
        return bisect_right(range(1, most + 1), free, key=self._blocks_taken_in)

    def _blocks_taken_in(self, num_steps: int) -> int:
        size = self.kv.block_size
        over = [len(r.token_ids) + num_steps - 1 - len(r.blocks) * size for r in self.running]
        return sum([-(-tokens // size) for tokens in over if tokens > 0])

    def begin_decode(self) -> None:
        """Do the work of `schedule` for a certain step."""
        size, num_rows = self.kv.block_size, len(self.running)
        self._finished_ids = []  # `schedule` would report them to the worker
        step = next(self._step)
        self.stats = StepStats(step=step, num_scheduled_tokens=num_rows, num_decode_tokens=num_rows)
        for request in self.running:
            request.in_flight_step = step
            if len(request.token_ids) > len(request.blocks) * size:
                self.kv.allocate(request, len(request.token_ids))

    def end_decode(self, answers: dict[str, list[int]]) -> list[EngineCoreOutput]:
        """Do the work of `update` for a certain step. Return the last outputs of finished requests."""
        kv, size, publishes = self.kv, self.kv.block_size, self.kv.enable_prefix_caching
        finished: list[EngineCoreOutput] = []
        for request in list(self.running):
            known = len(request.token_ids)
            request.in_flight_step = -1
            if known + 1 >= request.max_num_tokens:
                row = Scheduled(request.request_id, known - 1, 1, [])
                answer = ModelRunnerOutput({row.request_id: answers[row.request_id]})
                output = self._update_request(request, row, answer)
                assert output is not None  # a row with a token has an output
                finished.append(output)
                continue
            request.token_ids += answers[request.request_id]
            request.num_computed_tokens = known
            if publishes and (known % size == 0 or (known + 1) % size == 0):
                kv.publish(request)
            if kv.sliding_window is not None:
                self.stats.num_blocks_behind_window += kv.free_behind_window(request)
        self.stats.num_generated_tokens += len(self.running)
        self.fill_levels(self.stats)
        return finished

    def skip(self, num_steps: int, answers: dict[str, list[int]]) -> list[int]:
        """Apply `num_steps` steps, as counted by `steps_ahead`. `answers[request id]` is its next token, in a list.

        Return, for every block allocated, its step (from 0).
        """
        self._finished_ids = []  # the first of these steps would report them to the worker
        changes = self._changes(num_steps)
        first = {index: len(self.running[index].token_ids) for _, _, index in changes}
        for request in self.running:
            request.token_ids += answers[request.request_id] * num_steps
            request.num_computed_tokens += num_steps
        taken: list[int] = []
        self.kv.num_evictions_before = -1
        for step, change, index in changes:
            if step == num_steps and self.kv.num_evictions_before < 0:
                self.kv.num_evictions_before = self.kv.pool.num_evictions
            request = self.running[index]
            if change == _TAKE:
                self.kv.allocate(request, first[index] + step - 1)
                taken.append(step - 1)
            else:
                computed, request.num_computed_tokens = request.num_computed_tokens, first[index] + step - 1
                self.kv.publish(request)
                request.num_computed_tokens = computed
        if self.kv.num_evictions_before < 0:
            self.kv.num_evictions_before = self.kv.pool.num_evictions
        # The last step filled blocks with a token that the next one computes.
        if self.kv.enable_prefix_caching:
            for request in self.running:
                if len(request.token_ids) // self.kv.block_size > len(request.block_hashes):
                    self.kv.hasher.extend(request)
        self._count(num_steps)
        return taken

    def _changes(self, num_steps: int) -> list[tuple[int, int, int]]:
        """Return (step from 1, kind, index of the running request) in the order of the steps."""
        size, publishes = self.kv.block_size, self.kv.enable_prefix_caching
        changes: list[tuple[int, int, int]] = []
        for index, request in enumerate(self.running):
            known = len(request.token_ids)
            step = len(request.blocks) * size - known + 2  # the first whose token has no slot yet
            while step <= num_steps:
                changes.append((step, _TAKE, index))
                step += size
            if publishes:
                step = (1 - known) % size or size  # the first that leaves a block full and computed
                while step <= num_steps:
                    changes.append((step, _PUBLISH, index))
                    step += size
        changes.sort()
        return changes

    def _count(self, num_steps: int) -> None:
        num_rows = len(self.running)
        step = next(self._step) + num_steps - 1
        self._step = count(step + 1)
        self.stats = StepStats(step=step, num_scheduled_tokens=num_rows, num_decode_tokens=num_rows)
        self.stats.num_generated_tokens = num_rows
        self.fill_levels(self.stats)
