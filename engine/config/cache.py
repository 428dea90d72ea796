"""The size and the rules of the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.errors import require_at_least


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache. Sizes in tokens and blocks."""

    num_blocks: int
    """Including block 0, the null block that is never handed out."""
    block_size: int = 16
    enable_prefix_caching: bool = True
    kv_cache_dtype: str = "auto"
    """auto: the model's dtype."""
    detect_hash_collisions: bool = False
    """Remember what every block hash stands for, and fail when two prefixes share one. For debugging."""

    def __post_init__(self) -> None:
        require_at_least(1, block_size=self.block_size)
        require_at_least(2, num_blocks=self.num_blocks)
