"""Lab batching-loop: continuous batching as a loop over a model function.

The seam is the step of the engine (engine/engine_core.py): choose rows, run the model once for all of them, apply the
tokens. The model keeps KV in slots; each running request has one. A row is (slot, start, tokens): the model computes
`tokens` at the positions from `start` on, writes their KV to the slot, and reads the KV of the positions before. It
returns a token for each row, chosen after the row's last token.

    loop = BatchingLoop(num_slots=2, budget=4, max_len=16, eos=[0])
    loop.add("a", [5, 6, 7, 8, 9], 3);  loop.add("b", [4], 2)

    step   begin()                          the model    finish(tokens)
    0      [(0, 0, [5, 6, 7, 8])]           [3]          []      the prompt is not complete: 3 means nothing
    1      [(0, 4, [9]), (1, 0, [4])]       [2, 7]       [("a", 2, None), ("b", 7, None)]
    2      [(0, 5, [2]), (1, 1, [7])]       [0, 8]       [("a", 0, "stop"), ("b", 8, "length")]

Each token is computed once, and the last token of a request never. Requests come and leave at any time: `add` and
`abort` are called between steps and also while the model runs, between `begin` and `finish`.
Sources: Orca (Yu et al. 2022), section 3; vLLM v1/engine/core.py, v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

Row = tuple[int, int, list[int]]
"""Slot, position of the first token, tokens."""
Output = tuple[str, int, str | None]
"""Request, its new token, and "stop" or "length" if the request has ended with it."""


@dataclass(eq=False)
class Request:
    """An unfinished request."""

    request_id: str
    tokens: list[int]
    """Prompt and output."""
    end: int
    """Number of tokens at which it ends by length."""
    num_prompt: int
    num_computed: int = 0
    slot: int = -1
    is_aborted: bool = False

    @property
    def decodes(self) -> bool:
        return len(self.tokens) > self.num_prompt


class BatchingLoop:
    """Requests in order of arrival, slots, and the step that joins them."""

    def __init__(self, num_slots: int, budget: int, max_len: int, eos: Collection[int]) -> None:
        """budget: tokens of all rows of a step. max_len: positions of a slot. eos: token ids that end a request.

        Raises ValueError unless num_slots is at least 1 and the budget at least num_slots, so that every request that
        decodes gets its token in every step.
        """
        if not 1 <= num_slots <= budget:
            raise ValueError(f"a budget of {budget} tokens does not serve {num_slots} slots")
        self.budget, self.max_len, self.eos = budget, max_len, eos
        self.free = list(range(num_slots))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.rows: list[tuple[Request, int]] = []
        """The step that the model runs: requests, and how many tokens each computes."""

    @property
    def unfinished(self) -> list[str]:
        """Ids of the requests with a slot, in the order in which they took it, then of those without, by arrival."""
        return [each.request_id for each in [*self.running, *self.waiting] if not each.is_aborted]

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        """Queue a request for at most max_tokens tokens.

        Raises ValueError, and changes nothing, if the id is unfinished, the prompt is empty, max_tokens is below 1, or
        the tokens to compute (all but the last) do not fit into a slot.
        """
        if request_id in self.unfinished:
            raise ValueError(f"request {request_id!r} is unfinished")
        end = len(prompt) + max_tokens
        if not prompt or max_tokens < 1 or end - 1 > self.max_len:
            raise ValueError(f"{len(prompt)} prompt tokens and {max_tokens} to generate; {self.max_len} fit")
        self.waiting.append(Request(request_id, list(prompt), end, len(prompt)))

    def abort(self, request_id: str) -> bool:
        """End a request without a further output, waiting or running. Return False if the id is not unfinished.

        While the model runs it still writes to the request's slot, so the slot is free for the next step only. The
        token of the running step is discarded, even if another request with this id was added meanwhile.
        """
        for each in [*self.running, *self.waiting]:
            if each.request_id == request_id and not each.is_aborted:
                each.is_aborted = True
                if not self.rows:
                    self._remove_aborted()
                return True
        return False

    def begin(self) -> list[Row]:
        """Admit requests, and return the rows that the model computes in this step; [] if there is nothing to do.

        1. Waiting requests take free slots in order of arrival; any free slot will do.
        2. Every request that has output computes its last token, in the order in which they took their slots. Then, in
           the same order, each of the others computes as many of its prompt's next tokens as the budget allows; without
           budget it has no row.

        `finish` or `cancel` is called next, unless the rows are [].
        """
        while self.waiting and self.free:
            request = self.waiting.popleft()
            request.slot = self.free.pop()
            self.running.append(request)
        self.rows = self._choose()
        return [self._row(*each) for each in self.rows]

    def finish(self, tokens: Sequence[int]) -> list[Output]:
        """Apply the model's tokens, one per row, and return the outputs of the step in order of the rows.

        A token counts if its row ends at the request's last known token. With a token in `eos` the request ends by
        "stop", else with its max_tokens-th token by "length"; that token belongs to the output. An ended request is
        unfinished no longer, and its slot is free for the next step.
        """
        outputs: list[Output] = []
        rows, self.rows = self.rows, []
        for (request, count), token in zip(rows, tokens, strict=True):
            if request.is_aborted:
                continue
            request.num_computed += count
            if request.num_computed == len(request.tokens):
                outputs.append(self._append(request, token))
        self._remove_aborted()
        return outputs

    def cancel(self) -> None:
        """End a step in which the model has failed: it counts for nothing, admissions and aborts excepted.

        The next step computes the rows again.
        """
        self.rows.clear()
        self._remove_aborted()

    def step(self, forward: Callable[[list[Row]], Sequence[int]]) -> list[Output]:
        """Run a whole step on a model. Given: you need not change it."""
        rows = self.begin()
        if not rows:
            return []
        try:
            tokens = forward(rows)
        except BaseException:
            self.cancel()
            raise
        return self.finish(tokens)
        # given up to here

    def _choose(self) -> list[tuple[Request, int]]:
        """Return the requests of a step, with the number of tokens that each computes."""
        rows = [(request, 1) for request in self.running if request.decodes]
        left = self.budget - len(rows)
        for request in self.running:
            count = min(left, request.num_prompt - request.num_computed)
            if count > 0 and not request.decodes:
                rows.append((request, count))
                left -= count
        return rows

    def _row(self, request: Request, count: int) -> Row:
        start = request.num_computed
        return request.slot, start, request.tokens[start : start + count]

    def _append(self, request: Request, token: int) -> Output:
        request.tokens.append(token)
        reason = "stop" if token in self.eos else "length" if len(request.tokens) == request.end else None
        if reason is not None:
            self._leave(request)
        return request.request_id, token, reason

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.free.append(request.slot)

    def _remove_aborted(self) -> None:
        self.waiting = deque(each for each in self.waiting if not each.is_aborted)
        for request in [each for each in self.running if each.is_aborted]:
            self._leave(request)
