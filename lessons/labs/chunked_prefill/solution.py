"""Solution of lab chunked-prefill. The docstrings of the stub state the contract."""

from __future__ import annotations

import math


class ChunkController:
    def __init__(
        self, target: float, least: int = 64, most: int = 8192, aim: float = 0.9, release: float = 0.125
    ) -> None:
        if not target > 0:
            raise ValueError(f"target must be positive, got {target}")
        if not 1 <= least <= most:
            raise ValueError(f"1 <= least <= most, got {least} and {most}")
        if not (0 < aim <= 1 and 0 < release <= 1):
            raise ValueError(f"aim and release are shares in (0, 1], got {aim} and {release}")
        self.goal, self.least, self.most, self.release = aim * target, least, most, release
        self.base = 0.0
        """Seconds of a step of decodes alone."""
        self.cost: float | None = None
        """Seconds that one more prompt token adds."""
        self.last = 0
        """Prompt tokens of the last step that had any."""

    def budget(self, decodes: int) -> int:
        if decodes == 0:
            return self.most
        return min(self.most, decodes + self._chunk())

    def _chunk(self) -> int:
        if self.cost is None:
            return self.least
        room = max(0.0, self.goal - self.base)
        fits = math.floor(room / self.cost) if self.cost > 0 else self.most
        return max(self.least, min(fits, 2 * self.last))

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        if prompt_tokens == 0:
            self.base = seconds
            return
        self.last = prompt_tokens
        self.base = min(self.base, seconds)
        if prompt_tokens < self.least:
            return
        new = (seconds - self.base) / prompt_tokens
        if self.cost is None or new > self.cost:
            self.cost = new
        else:
            self.cost += self.release * (new - self.cost)
