"""Solution of lab batching-loop. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

Row = tuple[int, int, list[int]]
Output = tuple[str, int, str | None]


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
    def __init__(self, num_slots: int, budget: int, max_len: int, eos: Collection[int]) -> None:
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
        return [each.request_id for each in [*self.running, *self.waiting] if not each.is_aborted]

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        if request_id in self.unfinished:
            raise ValueError(f"request {request_id!r} is unfinished")
        end = len(prompt) + max_tokens
        if not prompt or max_tokens < 1 or end - 1 > self.max_len:
            raise ValueError(f"{len(prompt)} prompt tokens and {max_tokens} to generate; {self.max_len} fit")
        self.waiting.append(Request(request_id, list(prompt), end, len(prompt)))

    def abort(self, request_id: str) -> bool:
        for each in [*self.running, *self.waiting]:
            if each.request_id == request_id and not each.is_aborted:
                each.is_aborted = True
                if not self.rows:
                    self._remove_aborted()
                return True
        return False

    def begin(self) -> list[Row]:
        while self.waiting and self.free:
            request = self.waiting.popleft()
            request.slot = self.free.pop()
            self.running.append(request)
        self.rows = self._choose()
        return [self._row(*each) for each in self.rows]

    def finish(self, tokens: Sequence[int]) -> list[Output]:
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
        self.rows.clear()
        self._remove_aborted()

    def step(self, forward: Callable[[list[Row]], Sequence[int]]) -> list[Output]:
        rows = self.begin()
        if not rows:
            return []
        try:
            tokens = forward(rows)
        except BaseException:
            self.cancel()
            raise
        return self.finish(tokens)

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
