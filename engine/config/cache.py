"""The size and the rules of the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.combinations import check_combinations
from engine.config.errors import require_at_least
from engine.config.tiers import TierConfig


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache. Sizes in tokens and blocks."""

    num_blocks: int
    """Including block 0, the null block that is never handed out; 0 until the workers have measured their memory."""
    block_size: int = 16
    enable_prefix_caching: bool = True
    kv_cache_dtype: str = "auto"
    """auto: the model's dtype."""
    sliding_window: int | None = None
    """Positions that every layer sees, the current one included; blocks behind them are freed. None: all."""
    detect_hash_collisions: bool = False
    """Keep the tokens behind every block hash and fail if two prefixes share a hash. For debugging."""
    drop_last_hit_block: bool = False
    """Recompute the last block of a hit: the KV of an EAGLE head at its end depends on the next token."""
    tiers: TierConfig = TierConfig()
    """Host memory for swapped and evicted blocks."""

    def __post_init__(self) -> None:
        require_at_least(1, block_size=self.block_size)
        if self.num_blocks:
            require_at_least(2, num_blocks=self.num_blocks)
        check_combinations(
            host_blocks=self.tiers.num_host_blocks,
            sliding_window=self.sliding_window,
            offload=self.tiers.offload,
            no_prefix_caching=not self.enable_prefix_caching,
        )
