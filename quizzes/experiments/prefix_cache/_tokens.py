"""Token ids that occur nowhere else, and how many of a prompt's tokens went through the model."""

from __future__ import annotations

from itertools import count


class Fresh:
    """Hands out runs of token ids, each id once."""

    def __init__(self) -> None:
        self._next = count(1 << 20)

    def __call__(self, length: int) -> list[int]:
        return [next(self._next) for _ in range(length)]
