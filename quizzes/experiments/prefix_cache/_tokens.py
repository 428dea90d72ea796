"""Unique token ids."""

from __future__ import annotations

from itertools import count


class Fresh:
    """Returns runs of token ids, each id once."""

    def __init__(self) -> None:
        self._next = count(1 << 20)

    def __call__(self, length: int) -> list[int]:
        return [next(self._next) for _ in range(length)]
