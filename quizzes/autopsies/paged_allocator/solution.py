"""Block tables over one pool: a logical position becomes a slot."""


class PagedAllocator:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.block_tables: dict[str, list[int]] = {}
        self.num_tokens: dict[str, int] = {}

    def allocate(self, name: str, num_tokens: int) -> list[int]:
        if name in self.block_tables:
            raise ValueError(f"{name!r} already has blocks")
        count = -(-num_tokens // self.block_size)
        if count > len(self.free_blocks):
            raise MemoryError(f"{count} blocks needed, {len(self.free_blocks)} free")
        self.block_tables[name] = [self.free_blocks.pop() for _ in range(count)]
        self.num_tokens[name] = num_tokens
        return list(self.block_tables[name])

    def slot(self, name: str, position: int) -> int:
        if not 0 <= position < self.num_tokens[name]:
            raise IndexError(f"{name!r} has {self.num_tokens[name]} tokens, no position {position}")
        block = self.block_tables[name][position // self.block_size]
        return block * self.block_size + position % self.block_size

    def append(self, name: str) -> int:
        if self.num_tokens[name] == len(self.block_tables[name]) * self.block_size:
            if not self.free_blocks:
                raise MemoryError("no block is free")
            self.block_tables[name].append(self.free_blocks.pop())
        self.num_tokens[name] += 1
        return self.slot(name, self.num_tokens[name] - 1)

    def free(self, name: str) -> None:
        self.free_blocks += self.block_tables.pop(name)
        del self.num_tokens[name]
