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

Row = tuple[str, int, int]
"""(request id, position of the first token to compute, number of tokens)."""


class Scheduler:
    """Continuous batching, first come, first served; preemption by recomputation."""

    def __init__(
        self, max_num_batched_tokens: int, max_num_seqs: int, num_blocks: int, block_size: int
    ) -> None:
        """All arguments are at least 1.

        max_num_batched_tokens: token budget of a step. max_num_seqs: most requests that run at once.
        num_blocks: blocks of the KV cache, all usable. block_size: tokens in a block.
        """
        raise NotImplementedError("write Scheduler")

    @property
    def num_free(self) -> int:
        """Number of blocks that no request owns."""
        raise NotImplementedError("write num_free")

    def add(self, request_id: str, num_tokens: int, max_tokens: int) -> None:
        """Append a request to the queue.

        num_tokens: length of its prompt; max_tokens: most tokens that it generates. Both are at least 1.
        Raises ValueError, and changes nothing, if a request of this id waits or runs, or if the request could never
        finish: its prompt and all its output but the last token, which is never computed, need more than num_blocks
        blocks. (The caller decides when a request ends, and says so in `update`.)
        """
        raise NotImplementedError("write add")

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
        raise NotImplementedError("write schedule")

    def update(self, sampled: list[str], ended: list[str]) -> None:
        """Apply the results of a step.

        sampled: requests that have one known token more. They are those whose rows reached their last known token.
        ended: requests that leave, finished or aborted, whether they wait or run. Their blocks become free. An id may
        be in both lists, and an unknown id in `ended` is no error.
        """
        raise NotImplementedError("write update")
