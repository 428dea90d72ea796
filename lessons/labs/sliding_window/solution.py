"""Lab sliding-window: free the KV blocks behind a window, and find prefix hits that the window allows.

With a window of W, the token at position p attends to positions p - W + 1 to p: W tokens with itself. A request
computes its tokens in order, so a block that its next token does not see is never read again. The engine frees it and
puts block 0, the null block, in its place: the other blocks keep their index in the table.

    block_size = 4, window = 6, 13 tokens computed: the next one, at 13, sees positions 8 to 13

    positions      0..3     4..7     8..11    12..15
    table          5        2        9        4
    free(..., 13)  0        0        9        4           blocks 5 and 2 are free

A hit needs only the blocks that the next token sees. With blocks 9 and 4 full and cached, and 5 and 2 evicted, a
request with the same tokens starts at position 16: its table begins with [0, 0, 9, 4].
"""

from __future__ import annotations


class SlidingWindow:
    """Block tables of requests whose layers all have the same sliding window."""

    def __init__(self, window: int, block_size: int) -> None:
        """Both count tokens and are at least 1."""
        self._window = window
        self._size = block_size

    def free(self, table: list[int], num_computed: int) -> tuple[list[int], list[int]]:
        """Return the table with 0 for each block that is never read again, and the ids of the blocks to free.

        `num_computed` tokens, from position 0 on, are computed; the next one is at position `num_computed`. The new
        table is as long as the old one: 0 stands for each block that no token from there on sees. The second list has
        the ids that 0 replaces now, in table order: a block that an earlier call replaced is not freed again.
        """
        end = max(0, num_computed - self._window + 1) // self._size
        freed = [block for block in table[:end] if block != 0]
        return [0] * min(end, len(table)) + table[end:], freed

    def hit(self, found: list[int | None], num_tokens: int) -> list[int]:
        """Return the first blocks of the table of a request of `num_tokens` tokens: its longest prefix hit.

        found[i] is the cached block with the content of the request's full block i, or None. A hit of k blocks lets the
        request start at position k * block_size. It is possible if at least one token is left to compute, and if the
        blocks that it needs are cached: those that the token at this position sees, and the last one in any case.
        Returns 0 for each block before those, cached or not, and [] without a hit.
        """
        needed = max(1, -(-(self._window - 1) // self._size))
        run = 0
        for index in range((num_tokens - 1) // self._size - 1, -1, -1):
            run = run + 1 if found[index] is not None else 0
            if run == needed:
                return [0] * index + [block or 0 for block in found[index : index + run]]
        return [block or 0 for block in found[:run]]

    def max_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return the most blocks, other than 0, that a request's table can hold at once.

        A step computes up to `chunk` of its `num_tokens` tokens, from any position on. Before it, `free` has been
        called; during it, every token up to the last of the step has a slot. Admission asks for this number.
        (vLLM's bound is looser.)
        """
        visible = self._window - 1 + chunk
        return min(-(-num_tokens // self._size), -(-(visible - 1) // self._size) + 1)
