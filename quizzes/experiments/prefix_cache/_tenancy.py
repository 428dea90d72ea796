"""Token quota of a gateway against a tenant that floods the cache."""

from __future__ import annotations

from collections import deque


class TokenQuota:
    """Admits at most `tokens` prompt tokens of a tenant per round; the rest waits for the next round."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._waiting: deque[list[int]] = deque()

    def offer(self, prompt: list[int]) -> None:
        self._waiting.append(prompt)

    def admit(self) -> list[list[int]]:
        """Return the prompts admitted in this round, oldest first."""
        left, admitted = self.tokens, []
        while self._waiting and len(self._waiting[0]) <= left:
            prompt = self._waiting.popleft()
            left -= len(prompt)
            admitted.append(prompt)
        return admitted

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)
