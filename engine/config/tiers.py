"""KV blocks in host memory: swapped out by preemption, or offloaded by eviction.

`swap_space` and `preemption_mode` are vLLM 0.6's (vllm/config.py, CacheConfig and SchedulerConfig);
`kv_offloading_size` and `kv_offloading_backend` are today's (vllm/config/cache.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from common.text import GIB
from engine.config.defaults import SWAP_SPACE_BYTES
from engine.config.errors import ConfigError, require_at_least
from engine.config.memory import MemoryConfig


@dataclass(frozen=True)
class TierConfig:
    """The tiers below the device's cache; by default there are none."""

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
        sizes = {
            "swap_space": swap_bytes if memory.swap else 0,
            "kv_offloading_size": memory.offload_bytes,
        }
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
        return cls(
            num_host_blocks=sum(size // block_bytes for size in sizes.values()),
            swap=memory.swap,
            offload=memory.offload_bytes > 0,
            block_bytes=block_bytes,
        )
