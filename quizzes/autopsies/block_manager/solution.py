"""A pool of KV blocks with reference counts: a count is a number of owners, and free blocks wait in a queue."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    block_id: int
    block_size: int
    ref_count: int = 0
    tokens: list[int] = field(default_factory=list)

    def append(self, tokens: list[int]) -> bool:
        if len(self.tokens) + len(tokens) > self.block_size:
            return False
        self.tokens += tokens
        return True


class BlockManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block(i, block_size) for i in range(num_blocks)]
        self.free_blocks = deque(self.blocks)

    def allocate(self, num_tokens: int) -> list[Block] | None:
        if num_tokens < 0:
            raise ValueError(f"num_tokens must not be negative, got {num_tokens}")
        table: list[Block] = []
        return table if self.grow(table, num_tokens) else None

    def grow(self, table: list[Block], num_tokens: int) -> bool:
        needed = -(-num_tokens // self.block_size) - len(table)
        if needed > len(self.free_blocks):
            return False
        for _ in range(needed):
            block = self.free_blocks.popleft()
            block.ref_count = 1
            table.append(block)
        return True

    def share(self, table: list[Block]) -> None:
        for block in table:
            block.ref_count += 1

    def free(self, table: list[Block]) -> None:
        if any(block.ref_count < 1 for block in table):
            raise ValueError("a block of this table has no owner: it was freed before")
        for block in table:
            block.ref_count -= 1
            if block.ref_count == 0:
                block.tokens = []
                self.free_blocks.append(block)

    def num_free(self) -> int:
        return len(self.free_blocks)
