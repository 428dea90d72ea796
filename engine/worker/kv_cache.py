"""How large the KV cache is, and where it lies.

Source: vLLM v1/core/kv_cache_utils.py and v1/worker/gpu_worker.py (determine_available_memory).
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import psutil
import torch

from engine.config import ConfigError, EngineArgs, ModelConfig, SchedulerConfig, resolve_sliding_window
from engine.core.kv_manager import max_blocks_held
from engine.quant.kv_cache import KVCache, KVCacheLayout, cache_dtype

CPU_CACHE_CAP = 1 << 30
"""Most bytes the cache takes on a CPU unless told otherwise: the machine has other things to do."""


def layout_of(model: ModelConfig, args: EngineArgs, num_layers: int | None = None) -> KVCacheLayout:
    """What one block of this model's cache holds."""
    return KVCacheLayout(
        model.num_hidden_layers if num_layers is None else num_layers,
        model.num_key_value_heads,
        args.block_size,
        model.head_dim,
        cache_dtype(args.kv_cache_dtype, model.dtype),
    )


def choose_num_blocks(
    model: ModelConfig, args: EngineArgs, scheduler: SchedulerConfig, available_bytes: int
) -> int:
    """How many blocks to allocate, the null block included.

    The first of these that is set decides: `num_gpu_blocks_override`, `kv_cache_memory_bytes`, what is
    available. A cache found by its bytes must hold one sequence of `max_model_len`; an explicit number of
    blocks may be smaller, and the scheduler then refuses what cannot fit.
    """
    per_block = layout_of(model, args).bytes_per_block
    one_sequence = _blocks_per_sequence(model, args, scheduler) + 1
    if args.num_gpu_blocks_override is not None:
        return args.num_gpu_blocks_override
    if args.kv_cache_memory_bytes is not None:
        num_blocks = args.kv_cache_memory_bytes // per_block
        source = f"kv_cache_memory_bytes={args.kv_cache_memory_bytes}"
        remedy = f"raise it to at least {one_sequence * per_block}"
    else:
        num_blocks = available_bytes // per_block
        source = f"the {available_bytes / 2**20:.0f} MiB left for the cache"
        remedy = "raise gpu_memory_utilization or free memory"
    if num_blocks < one_sequence:
        longest = max(0, num_blocks - 1) * args.block_size
        raise ConfigError(
            f"the KV cache cannot hold one sequence of max_model_len={scheduler.max_model_len} tokens: that "
            f"takes {one_sequence * per_block / 2**20:.1f} MiB, and {source} is enough for {longest} tokens; "
            f"{remedy}, or lower max_model_len"
        )
    return num_blocks


def available_cpu_bytes(
    model: ModelConfig, args: EngineArgs, scheduler: SchedulerConfig, num_workers: int = 1
) -> int:
    """Memory for the cache on a CPU: `gpu_memory_utilization` of what is free, but not more than is sensible.

    num_workers: how many workers with a cache of their own share what is free.

    Sensible is what `max_num_seqs` full sequences take, up to CPU_CACHE_CAP; if a single full sequence
    takes more than the cap, that much.
    """
    per_block = layout_of(model, args).bytes_per_block
    one_sequence = _blocks_per_sequence(model, args, scheduler)
    most = (scheduler.max_num_seqs * one_sequence + 1) * per_block
    least = (one_sequence + 1) * per_block
    free = int(free_host_bytes() * args.gpu_memory_utilization)
    return min(free // num_workers, most, max(CPU_CACHE_CAP, least))


def free_host_bytes() -> int:
    """Memory that this process may still take."""
    free = psutil.virtual_memory().available
    limit = _cgroup_bytes_left()
    return free if limit is None else min(free, limit)


def allocate(model: ModelConfig, args: EngineArgs, num_blocks: int, device: torch.device) -> KVCache:
    """The whole cache, zeroed."""
    layout = layout_of(model, args)
    num_bytes = num_blocks * layout.bytes_per_block
    try:
        if device.type == "cpu":
            return layout.over(torch.from_numpy(_lazy_zeros(num_bytes)))
        return layout.over(torch.zeros(num_bytes, dtype=torch.uint8, device=device))
    except (RuntimeError, MemoryError, OSError) as error:  # torch's out-of-memory errors are RuntimeErrors
        raise ConfigError(
            f"no memory for a KV cache of {num_blocks} blocks ({num_bytes / 2**20:.0f} MiB); lower "
            "num_gpu_blocks_override or kv_cache_memory_bytes"
        ) from error


def _lazy_zeros(num_bytes: int) -> np.ndarray:
    """Zeroed memory that the system hands out when it is first used, in pages of 2 MiB where it can.

    torch would write every page now, and pages of 4 KiB cost a fault each: measured, four times as long in all.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(num_bytes, np.uint8)
    memory = mmap.mmap(-1, max(1, num_bytes))
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, num_bytes)


def _blocks_per_sequence(model: ModelConfig, args: EngineArgs, scheduler: SchedulerConfig) -> int:
    return max_blocks_held(
        scheduler.max_model_len,
        scheduler.max_num_batched_tokens,
        args.block_size,
        resolve_sliding_window(args, model),
    )


def _cgroup_bytes_left() -> int | None:
    """What a container may still take (cgroup v2); None outside of one or without a limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))
