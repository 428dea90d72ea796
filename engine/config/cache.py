"""The size and the rules of the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.args import EngineArgs
from engine.config.errors import ConfigError, require_at_least
from engine.config.model import ModelConfig
from engine.config.tiers import TierConfig, wants_swap


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache. Sizes in tokens and blocks."""

    num_blocks: int
    """Including block 0, the null block that is never handed out."""
    block_size: int = 16
    enable_prefix_caching: bool = True
    kv_cache_dtype: str = "auto"
    """auto: the model's dtype."""
    sliding_window: int | None = None
    """If every layer sees only this many positions back, itself included: blocks behind it are given back."""
    detect_hash_collisions: bool = False
    """Remember what every block hash stands for, and fail when two prefixes share one. For debugging."""
    drop_last_hit_block: bool = False
    """Compute the last block of a hit again: an EAGLE head's KV at its end depends on the token behind it."""
    tiers: TierConfig = TierConfig()
    """Where blocks go that do not fit."""

    def __post_init__(self) -> None:
        require_at_least(1, block_size=self.block_size)
        require_at_least(2, num_blocks=self.num_blocks)
        if self.tiers.num_host_blocks and self.sliding_window is not None:
            raise ConfigError(
                "host tiers keep whole prefixes, and with a sliding window blocks behind it are given back; leave "
                "sliding_window None to use them"
            )
        if self.tiers.offload and not self.enable_prefix_caching:
            raise ConfigError(
                "offloading keeps cached prefixes for later requests, and enable_prefix_caching=False forbids "
                "those; allow prefix caching, or drop kv_offloading_size (preemption_mode='swap' needs neither)"
            )


def resolve_sliding_window(args: EngineArgs, model: ModelConfig) -> int | None:
    """How far back the farthest-seeing layer sees, if blocks behind that can be given back.

    Not if one layer sees everything, and not if somebody else reads blocks by whole prefixes: a host tier, another
    engine, a draft model with layers of its own.
    """
    others = (
        wants_swap(args),
        args.kv_offloading_size,
        args.kv_transfer_config,
        args.speculative_config,
    )
    windows = model.sliding_window
    if any(others) or not windows or None in windows:
        return None
    return max(window for window in windows if window is not None)
