"""A pool of KV blocks with reference counts."""

from __future__ import annotations


class Block:
    def __init__(self, block_id: int, block_size: int) -> None:
        self.block_id = block_id
        self.block_size = block_size
        self.ref_count = 0
        self.tokens: list[int] = []
        self.is_free = True

    def can_append(self, count: int) -> bool:
        return self.is_free and len(self.tokens) + count <= self.block_size

    def append(self, tokens: list[int]) -> bool:
        if not self.can_append(len(tokens)):
            return False
        self.tokens += tokens
        self.ref_count += 1
        self.is_free = False
        return True

    def reset(self) -> None:
        self.tokens = []
        self.ref_count = 0
        self.is_free = True


class BlockManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block(i, block_size) for i in range(num_blocks)]
        self.allocated: dict[int, Block] = {}

    def allocate(self, num_tokens: int) -> list[Block] | None:
        needed = (num_tokens + self.block_size - 1) // self.block_size
        free = [block for block in self.blocks if block.is_free]
        if len(free) < needed:
            return None
        taken = []
        for i in range(needed):
            free[i].is_free = False
            self.allocated[free[i].block_id] = free[i]
            taken.append(free[i])
        return taken

    def free(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count <= 0:
                block.reset()
                self.allocated.pop(block.block_id, None)

    def num_free(self) -> int:
        return sum(1 for block in self.blocks if block.is_free)
