"""The paged KV cache: its rules, its size, and the host memory below it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.combinations import check_combinations
from engine.config.settings import ConfigError, require_at_least
from prep_common.text import GIB

SWAP_SPACE_BYTES = 4 * GIB
"""Default of swap_space, limited to a quarter of the free host memory."""


@dataclass(frozen=True)
class MemoryConfig:
    """Limits in bytes, resolved to numbers of blocks by the workers.

    The first of `num_gpu_blocks_override`, `kv_cache_memory_bytes` and `gpu_memory_utilization` that is set decides
    how many blocks the device holds.
    """

    gpu_memory_utilization: float = 0.92
    """Share of the device's memory, weights included; on a CPU, of the free memory."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    swap: bool = False
    """Keep the blocks of preempted requests in host memory."""
    swap_bytes: int | None = None
    """None: `SWAP_SPACE_BYTES`, limited to a quarter of the free host memory."""
    offload_bytes: int = 0
    """Host memory for blocks that the device's prefix cache evicts."""


@dataclass(frozen=True)
class TierConfig:
    """KV blocks in host memory: swapped out by preemption, or offloaded by eviction; by default there are none.

    `swap_space` and `preemption_mode` are vLLM 0.6's (vllm/config.py); `kv_offloading_size` is today's.
    """

    num_host_blocks: int = 0
    """Blocks of host memory, as large as the device's, shared by swapped and offloaded blocks."""
    swap: bool = False
    """Keep a preempted request's blocks on the host instead of recomputing them (`preemption_mode="swap"`)."""
    offload: bool = False
    """Keep blocks that the device's prefix cache evicts on the host (`kv_offloading_size`)."""
    block_bytes: int = 0
    """Bytes of a block over all layers and workers, for counters; 0 if unknown."""

    def __post_init__(self) -> None:
        require_at_least(0, num_host_blocks=self.num_host_blocks, block_bytes=self.block_bytes)
        if (self.swap or self.offload) and not self.num_host_blocks:
            raise ConfigError("keeping blocks on the host needs host memory: num_host_blocks is 0")

    @classmethod
    def sized(cls, memory: MemoryConfig, block_bytes: int, free_bytes: int) -> TierConfig:
        """Convert the bytes asked for to blocks of `block_bytes`; `free_bytes` of host memory are free.

        Raises ConfigError if they hold no block, or more than the free memory.
        """
        swap_bytes = memory.swap_bytes
        if swap_bytes is None:
            swap_bytes = min(SWAP_SPACE_BYTES, free_bytes // 4)
        sizes = {"swap_space": swap_bytes if memory.swap else 0, "kv_offloading_size": memory.offload_bytes}
        for name, size in sizes.items():
            if 0 < size < block_bytes:
                raise ConfigError(
                    f"{name}={size / GIB:g} GiB holds no KV block: one takes {block_bytes / GIB:.2g} GiB; raise it"
                )
        if sum(sizes.values()) > free_bytes:
            asked = " and ".join(f"{name}={size / GIB:g}" for name, size in sizes.items() if size)
            raise ConfigError(
                f"{asked} (GiB) is more host memory than the {free_bytes / GIB:.1f} GiB that are free; lower it"
            )
        num_blocks = sum(size // block_bytes for size in sizes.values())
        return cls(num_blocks, memory.swap, memory.offload_bytes > 0, block_bytes)


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
    watermark: float = 0.0
    """Share of `num_blocks` that stays free when a request starts beside running ones, in [0, 1)."""

    def __post_init__(self) -> None:
        require_at_least(1, block_size=self.block_size)
        if not isinstance(self.watermark, int | float) or not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark must be a share of the KV blocks in [0, 1), got {self.watermark!r}")
        if self.num_blocks:
            require_at_least(2, num_blocks=self.num_blocks)
        check_combinations(
            host_blocks=self.tiers.num_host_blocks,
            sliding_window=self.sliding_window,
            offload=self.tiers.offload,
            no_prefix_caching=not self.enable_prefix_caching,
        )
