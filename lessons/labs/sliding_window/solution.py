"""Solution of lab sliding-window. The docstrings of the stub state the contract."""

from __future__ import annotations


class SlidingWindow:
    def __init__(self, window: int, block_size: int) -> None:
        self._window = window
        self._size = block_size

    def free(self, table: list[int], num_computed: int) -> tuple[list[int], list[int]]:
        end = max(0, num_computed - self._window + 1) // self._size
        freed = [block for block in table[:end] if block != 0]
        return [0] * min(end, len(table)) + table[end:], freed

    def hit(self, found: list[int | None], num_tokens: int) -> list[int]:
        needed = max(1, -(-(self._window - 1) // self._size))
        run = 0
        for index in range((num_tokens - 1) // self._size - 1, -1, -1):
            run = run + 1 if found[index] is not None else 0
            if run == needed:
                return [0] * index + [block or 0 for block in found[index : index + run]]
        return [block or 0 for block in found[:run]]

    def max_blocks(self, num_tokens: int, chunk: int) -> int:
        visible = self._window - 1 + chunk
        return min(-(-num_tokens // self._size), -(-(visible - 1) // self._size) + 1)
