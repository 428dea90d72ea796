"""Reference solutions of lesson 07."""

# ruff: noqa: E402

# exercise 07.1
from collections import Counter, deque
from collections.abc import Sequence


class BlockAllocator:
    """A pool of KV blocks, ids 0 to num_blocks - 1, each with a count of its owners; 0 owners: free."""

    def __init__(self, num_blocks: int) -> None:
        self._free = deque(range(num_blocks))
        self._owners = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def ref_count(self, block: int) -> int:
        return self._owners[block]

    def take(self, count: int) -> list[int]:
        """Return the `count` blocks that have been free longest, with one owner each; a new pool starts at 0, 1, ...

        Raises MemoryError, and changes nothing, if fewer are free.
        """
        if count > len(self._free):
            raise MemoryError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Add an owner. Raises ValueError if the block is free."""
        if self._owners[block] == 0:
            raise ValueError(f"block {block} is free; only a block with an owner can be shared")
        self._owners[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one owner of each block, in this order. A block that loses its last owner becomes free.

        Raises ValueError, and changes nothing, if a block is listed more often than it has owners.
        """
        for block, times in Counter(blocks).items():
            if times > self._owners[block]:
                raise ValueError(f"block {block} has {self._owners[block]} owners, released {times} times")
        for block in blocks:
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free.append(block)


# exercise 07.2
from typing import Any


def fork(allocator: Any, table: list[int]) -> list[int]:
    """Return the block table of a child that shares all blocks of its parent; each gets one more owner.

    allocator: take(count), share(block), release(blocks), ref_count(block), num_free.
    """
    for block in table:
        allocator.share(block)
    return list(table)


def write(allocator: Any, table: list[int], index: int) -> tuple[int, int] | None:
    """Prepare to write into the block at `index` of this table, which no other table may see.

    Return None if this table is the only owner. Otherwise replace table[index] by a new block and return
    (source, target): the caller copies the contents of source to target. Raises MemoryError, and changes nothing,
    if no block is free.
    """
    source = table[index]
    if allocator.ref_count(source) == 1:
        return None
    [target] = allocator.take(1)
    allocator.release([source])
    table[index] = target
    return source, target


# exercise 07.3
def slot_mapping(table: list[int], start: int, count: int, block_size: int) -> list[int]:
    """Return the cache slots of the tokens at positions start, ..., start + count - 1 of one request.

    table: its block ids in logical order. Slot s of the cache is place s % block_size of block s // block_size.
    Raises ValueError if a position lies behind the last block.
    """
    if start + count > len(table) * block_size:
        raise ValueError(f"{start + count} tokens do not fit into {len(table)} blocks of {block_size}")
    return [
        table[position // block_size] * block_size + position % block_size
        for position in range(start, start + count)
    ]
