"""A cache of KV blocks: a block is known by all tokens up to its end, and the least recently used goes first."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class PrefixCache:
    def __init__(
        self, num_blocks: int, block_size: int, compute: Callable[[list[int], int], list[Any]]
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.compute = compute
        self.blocks: OrderedDict[tuple[int, ...], list[Any]] = OrderedDict()
        self.queries = self.hits = 0

    def __len__(self) -> int:
        return len(self.blocks)

    def get_or_compute(self, token_ids: list[int]) -> tuple[list[Any], int]:
        size = self.block_size
        cached: list[Any] = []
        used = []
        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
            key = tuple(token_ids[:end])
            if key not in self.blocks:
                break
            cached += self.blocks[key]
            used.append(key)
        kv = cached + self.compute(token_ids, len(cached))
        for end in range(size, len(token_ids) + 1, size):
            key = tuple(token_ids[:end])
            self.blocks[key] = kv[end - size : end]
        for end in range(len(token_ids) // size * size, 0, -size):  # the tail becomes the oldest
            self.blocks.move_to_end(tuple(token_ids[:end]))
        while len(self.blocks) > self.num_blocks:
            self.blocks.popitem(last=False)
        self.queries += len(token_ids)
        self.hits += len(cached)
        return kv, len(cached)
