"""What a gateway can do about a neighbour who floods the cache: let only so many of its tokens in at a time."""

from __future__ import annotations

from collections import deque


class TokenQuota:
    """A tenant may have at most `tokens` prompt tokens admitted per round; the rest waits for the next one."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._waiting: deque[list[int]] = deque()

    def offer(self, prompt: list[int]) -> None:
        self._waiting.append(prompt)

    def admit(self) -> list[list[int]]:
        """The prompts that this round lets through, oldest first."""
        left, admitted = self.tokens, []
        while self._waiting and len(self._waiting[0]) <= left:
            prompt = self._waiting.popleft()
            left -= len(prompt)
            admitted.append(prompt)
        return admitted

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)
