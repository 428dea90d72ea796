"""The idea of paged attention as a class."""

from typing import Any


class PagedAttention:
    def __init__(self, block_size: int = 16) -> None:
        self.block_size = block_size
        self.free_blocks: list[int] = []
        self.block_tables: dict[str, list[int]] = {}

    def allocate_blocks(self, num_tokens: int) -> list[int]:
        count = (num_tokens + self.block_size - 1) // self.block_size
        return self.free_blocks[:count]

    def compute_attention(self, query: Any, key_blocks: Any, value_blocks: Any) -> Any:
        """Look the blocks up in the block table and attend to what is in them."""
