"""A pool of KV blocks with reference counts."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    block_id: int
    block_size: int
    ref_count: int = 0
    tokens: list[int] = field(default_factory=list)
    is_free: bool = True

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
        taken = [b for b in self.blocks if b.is_free][:needed]
        if len(taken) < needed:
            return None
        for block in taken:
            block.is_free = False
            self.allocated[block.block_id] = block
        return taken

    def free(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count <= 0:
                block.reset()
                self.allocated.pop(block.block_id, None)

    def num_free(self) -> int:
        return sum(1 for block in self.blocks if block.is_free)
