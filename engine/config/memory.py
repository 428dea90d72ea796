"""How much memory KV blocks may take, on the device and on the host."""

from __future__ import annotations

from dataclasses import dataclass


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
