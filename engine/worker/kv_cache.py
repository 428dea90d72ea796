"""KV size: number of blocks, available memory, allocation on the device and on the host.

Source: vLLM v1/core/kv_cache_utils.py, v1/worker/gpu_worker.py (determine_available_memory) and
v1/kv_offload/cpu/gpu_worker.py (copies between device and host).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import CacheConfig, ConfigError, EngineConfig, ModelConfig
from engine.core.kv_manager import max_blocks_held
from engine.core.sched_output import SchedulerOutput
from engine.quant.kv_cache import KVCache, KVCacheLayout, cache_dtype
from kernels import ops
from prep_common.memory import free_host_bytes
from prep_common.text import counted

CPU_CACHE_CAP = 1 << 30
"""Maximum bytes of the cache on a CPU by default: the machine runs other programs too."""


class CacheSize(NamedTuple):
    """Number of blocks to allocate, the null block included, and why."""

    num_blocks: int
    reason: str


def layout_of(model: ModelConfig, cache: CacheConfig) -> KVCacheLayout:
    """Return the layout of one block of this model's cache."""
    dtype = cache_dtype(cache.kv_cache_dtype, model.dtype)
    layers, kv_heads = model.num_hidden_layers, model.num_key_value_heads
    return KVCacheLayout(layers, kv_heads, cache.block_size, model.head_dim, dtype)


def choose_num_blocks(model: ModelConfig, config: EngineConfig, available: tuple[int, str]) -> CacheSize:
    """Return how many blocks to allocate.

    The first of these that is set decides: `num_gpu_blocks_override`, `kv_cache_memory_bytes`, `available`: bytes and
    where they come from. A cache sized by bytes must hold one sequence of `max_model_len`; an explicit number of
    blocks may be smaller, and the scheduler then rejects requests that cannot fit.
    """
    memory = config.memory
    per_block = layout_of(model, config.cache).bytes_per_block
    one_sequence = _blocks_per_sequence(config) + 1
    if memory.num_gpu_blocks_override is not None:
        return CacheSize(memory.num_gpu_blocks_override, "num_gpu_blocks_override")
    if memory.kv_cache_memory_bytes is not None:
        num_bytes, reason = memory.kv_cache_memory_bytes, "kv_cache_memory_bytes"
        source = f"kv_cache_memory_bytes={num_bytes}"
        remedy = f"raise it to at least {one_sequence * per_block}"
    else:
        num_bytes, reason = available
        source = f"the {num_bytes / 2**20:.0f} MiB left for the cache"
        remedy = "raise gpu_memory_utilization or free memory"
    num_blocks = num_bytes // per_block
    if num_blocks < one_sequence:
        longest = max(0, num_blocks - 1) * config.cache.block_size
        raise ConfigError(
            f"the KV cache cannot hold one sequence of max_model_len={config.scheduler.max_model_len} tokens: that "
            f"takes {one_sequence * per_block / 2**20:.1f} MiB, and {source} is enough for {longest} tokens; "
            f"{remedy}, or lower max_model_len"
        )
    return CacheSize(num_blocks, reason)


def available_cpu_bytes(model: ModelConfig, config: EngineConfig) -> tuple[int, str]:
    """Return the memory for the cache of one worker on a CPU, and its reason.

    That is `gpu_memory_utilization` of the free memory, shared by all workers, but not more than `max_num_seqs` full
    sequences take, up to CPU_CACHE_CAP; if a single full sequence takes more than the cap, that much.
    """
    per_block = layout_of(model, config.cache).bytes_per_block
    one_sequence = _blocks_per_sequence(config)
    max_num_seqs, share = config.scheduler.max_num_seqs, config.memory.gpu_memory_utilization
    num_workers = config.parallel.world_size * config.parallel.data_parallel_size
    return min(
        (int(free_host_bytes() * share) // num_workers, f"{share:.0%} of the free memory"),
        ((max_num_seqs * one_sequence + 1) * per_block, f"max_num_seqs={max_num_seqs} full sequences"),
        (max(CPU_CACHE_CAP, (one_sequence + 1) * per_block), "the most that is taken on a CPU by default"),
    )


def allocate(model: ModelConfig, cache: CacheConfig, num_blocks: int, device: torch.device) -> KVCache:
    """Return the whole cache, zeroed. Raises ConfigError if there is no memory for it."""
    layout = layout_of(model, cache)
    num_bytes = num_blocks * layout.bytes_per_block
    try:
        if device.type == "cpu":
            return layout.over(ops.lazy_zeros(num_bytes))
        return layout.over(torch.zeros(num_bytes, dtype=torch.uint8, device=device))
    except (RuntimeError, MemoryError, OSError) as error:  # torch's out-of-memory errors are RuntimeErrors
        raise ConfigError(
            f"no memory for a KV cache of {counted(num_blocks, 'block')} ({num_bytes / 2**20:.0f} MiB); lower "
            "num_gpu_blocks_override or kv_cache_memory_bytes"
        ) from error


def _blocks_per_sequence(config: EngineConfig) -> int:
    limits, cache = config.scheduler, config.cache
    chunk = limits.max_num_batched_tokens
    return max_blocks_held(limits.max_model_len, chunk, cache.block_size, cache.sliding_window)


class HostPool:
    """Host memory for KV blocks, and the copies between it and the device.

        device  [num_blocks,     bytes]      a block is contiguous in both: a copy is a memcpy per block
        host    [num_blocks + 1, bytes]      block 0 is the pool's null block

    On a GPU the host side is pinned and the copies are queued on the stream that runs the model: behind the steps that
    wrote the blocks, before the pass that reads them, and in the order in which they are given.
    """

    def __init__(self, device_blocks: Tensor, num_blocks: int) -> None:
        """device_blocks: the whole cache, [num_blocks, ...]."""
        self._device = device_blocks
        shape = torch.Size((num_blocks + 1, *device_blocks.shape[1:]))
        try:
            self._host = torch.empty(shape, dtype=device_blocks.dtype, pin_memory=device_blocks.is_cuda)
        except (RuntimeError, MemoryError) as error:  # torch's out-of-memory errors are RuntimeErrors
            size = shape.numel() * device_blocks.dtype.itemsize / 2**20
            raise ConfigError(
                f"no host memory for {num_blocks + 1} KV blocks ({size:.0f} MiB); lower swap_space or "
                "kv_offloading_size"
            ) from error

    @property
    def nbytes(self) -> int:
        return self._host.nbytes

    def copy(self, out: SchedulerOutput) -> None:
        """Run a step's copies: to the host, then to the device."""
        if out.copy_out:
            ops.copy_blocks(self._device, self._host, torch.tensor(out.copy_out, dtype=torch.int64))
            if out.kv_connector_metadata is not None and self._device.is_cuda:
                torch.cuda.synchronize()  # connector threads may fill the blocks that were just copied
        if out.copy_in:
            ops.copy_blocks(self._host, self._device, torch.tensor(out.copy_in, dtype=torch.int64))
