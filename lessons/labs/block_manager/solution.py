"""Lab block-manager: blocks of KV memory, block tables, copy-on-write.

The engine's scheduler asks this object for memory. When it admits a request, and whenever a request's next tokens need
a slot, it calls `allocate`. When a request finishes or is preempted, it calls `free`. Parallel sampling and beam search
call `fork`, and `write` before each token that a fork writes.

    block_size = 4            table("a") = [1, 2]        a b c d | e f . .        6 tokens, 2 blocks
    fork("a", "b")            table("b") = [1, 2]        no block is taken; blocks 1 and 2 have 2 owners
    write("b", 6) -> (2, 3)   table("b") = [1, 3]        the caller copies block 2 to block 3, then writes

Units: `num_tokens` and `position` count tokens from 0 at the start of the request; a block holds `block_size` tokens.
Ids of requests are strings. Blocks are 1 to num_blocks - 1: block 0 is the null block for padding, never handed out.
"""

from __future__ import annotations

from collections import deque


class BlockManager:
    """Owns the blocks of a KV cache and the block table of every request."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Start with num_blocks - 1 free blocks: all but block 0."""
        self._block_size = block_size
        self._free = deque(range(1, num_blocks))
        self._owners = [0] * num_blocks
        self._tables: dict[str, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Number of blocks that no table holds. O(1): the scheduler reads it in every step."""
        return len(self._free)

    def table(self, request: str) -> list[int]:
        """Return a copy of the request's block table, in the order of its tokens; [] for an unknown request."""
        return list(self._tables.get(request, ()))

    def allocate(self, request: str, num_tokens: int) -> list[int] | None:
        """Extend the request's table until `num_tokens` tokens have a slot.

        Returns the ids appended, [] if none is missing. Returns None and changes nothing if too few blocks are free.
        An unknown request starts with an empty table, also if 0 tokens are asked for. A table never shrinks here.
        """
        held = len(self._tables.get(request, ()))
        missing = max(0, -(-num_tokens // self._block_size) - held)
        if missing > len(self._free):
            return None
        taken = [self._take() for _ in range(missing)]
        self._tables.setdefault(request, []).extend(taken)
        return taken

    def fork(self, parent: str, child: str) -> None:
        """Give the child a table with the parent's blocks, without taking a block.

        Raises KeyError if the parent has no table, else ValueError if the child has one.
        """
        table = self._tables[parent]
        if child in self._tables:
            raise ValueError(f"{child!r} has a table already")
        for block in table:
            self._owners[block] += 1
        self._tables[child] = list(table)

    def write(self, request: str, position: int) -> tuple[int, int] | None:
        """Make the block of a position safe to write for this request.

        Returns None if the request is its only owner. Otherwise the table gets a new block in its place: returns
        (old, new), which the caller copies. Raises MemoryError and changes nothing if no block is free; KeyError for an
        unknown request; IndexError if the position has no slot.
        """
        table = self._tables[request]
        if not 0 <= position < len(table) * self._block_size:
            raise IndexError(f"position {position} of {request!r} has no slot")
        index = position // self._block_size
        old = table[index]
        if self._owners[old] == 1:
            return None
        if not self._free:
            raise MemoryError("no block is free for the copy")
        new = self._take()
        self._owners[old] -= 1
        table[index] = new
        return old, new

    def free(self, request: str) -> None:
        """Drop the request's table; a block without owners becomes free. Raises KeyError if it has no table."""
        for block in self._tables.pop(request):
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free.append(block)

    def _take(self) -> int:
        block = self._free.popleft()
        self._owners[block] = 1
        return block
