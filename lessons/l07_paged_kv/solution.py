"""Reference solutions of lesson 07."""

# ruff: noqa: E402

# exercise 07.1
from collections import Counter, deque
from collections.abc import Sequence


class BlockAllocator:
    def __init__(self, num_blocks: int) -> None:
        self._free = deque(range(num_blocks))
        self._owners = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def ref_count(self, block: int) -> int:
        return self._owners[block]

    def take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise MemoryError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def share(self, block: int) -> None:
        if self._owners[block] == 0:
            raise ValueError(f"block {block} is free; only a block with an owner can be shared")
        self._owners[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
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
    for block in table:
        allocator.share(block)
    return list(table)


def write(allocator: Any, table: list[int], index: int) -> tuple[int, int] | None:
    source = table[index]
    if allocator.ref_count(source) == 1:
        return None
    [target] = allocator.take(1)
    allocator.release([source])
    table[index] = target
    return source, target


# exercise 07.3
def slot_mapping(table: list[int], start: int, count: int, block_size: int) -> list[int]:
    if start + count > len(table) * block_size:
        raise ValueError(f"{start + count} tokens do not fit into {len(table)} blocks of {block_size}")
    return [
        table[position // block_size] * block_size + position % block_size
        for position in range(start, start + count)
    ]
