"""Blocks that the allocator returns."""

from types import ModuleType
from typing import Any


def as_written(given: ModuleType) -> str:
    """The method whose body is a comment, as guides print it: does Python read it?"""
    sketch = "class PagedAttention:\n    def compute_attention(self, query):\n        # read the blocks\n"
    compile(sketch, "sketch", "exec")
    return "reads"


def blocks_for(given: ModuleType, *, num_tokens: int = 100, block_size: int = 16) -> int:
    """Blocks that a new allocator hands out for so many tokens."""
    return len(given.PagedAttention(block_size).allocate_blocks(num_tokens))


def _filled(given: ModuleType, num_blocks: int) -> Any:
    allocator = given.PagedAttention(16)
    allocator.free_blocks = list(range(num_blocks))
    return allocator


def owners_of_the_first_block(given: ModuleType, *, sequences: int = 3, num_blocks: int = 64) -> int:
    """Return how many sequences get block 0 with a filled free list."""
    allocator = _filled(given, num_blocks)
    return sum(0 in allocator.allocate_blocks(40) for _ in range(sequences))


def blocks_when_too_few(given: ModuleType, *, num_tokens: int = 100, num_blocks: int = 4) -> int:
    """Return the blocks of a sequence that needs more than are free."""
    allocator = _filled(given, num_blocks)
    return len(allocator.allocate_blocks(num_tokens))


def tables_after(given: ModuleType, *, sequences: int = 3) -> int:
    """Block tables that the allocator knows after it has served sequences."""
    allocator = _filled(given, 64)
    for _ in range(sequences):
        allocator.allocate_blocks(40)
    return len(allocator.block_tables)
