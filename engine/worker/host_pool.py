"""Host memory for KV blocks, and the copies between it and the device.

    device tensor  [num_blocks,      layers, 2, kv_heads, block_size, head_dim]
    host tensor    [num_host_blocks, layers, 2, kv_heads, block_size, head_dim]

A block is contiguous in both, so a copy is a memcpy per block. Data of a block in another tensor (the scales of a
quantised cache) is one more pair of tensors with the same block index.

On a GPU the host side is pinned and the copies are queued on the stream that runs the model: behind the
steps that wrote the blocks, before the pass that reads them, and in the order in which they are given.
Source: vLLM v1/kv_offload/cpu/gpu_worker.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.core.sched_output import SchedulerOutput
from kernels import ops


class HostPool:
    """Host blocks: one host tensor for each device tensor that holds blocks."""

    def __init__(self, caches: Sequence[Tensor], num_blocks: int) -> None:
        """caches: device tensors [num_blocks, ...] of contiguous blocks. num_blocks: usable ones, without block 0."""
        self._is_async = any(cache.device.type == "cuda" for cache in caches)
        self.pairs = [(cache, _host_tensor(cache, num_blocks + 1)) for cache in caches]

    @property
    def nbytes(self) -> int:
        return sum(host.nbytes for _, host in self.pairs)

    def copy(self, out: SchedulerOutput) -> None:
        """Run a step's copies: to the host, then to the device."""
        if out.copy_out:
            block_pairs = torch.tensor(out.copy_out, dtype=torch.int64)
            for device, host in self.pairs:
                ops.copy_blocks(device, host, block_pairs)
            if out.kv_connector_metadata is not None and self._is_async:
                torch.cuda.synchronize()  # connector threads may fill the blocks that were just copied
        if out.copy_in:
            block_pairs = torch.tensor(out.copy_in, dtype=torch.int64)
            for device, host in self.pairs:
                ops.copy_blocks(host, device, block_pairs)


def _host_tensor(cache: Tensor, num_blocks: int) -> Tensor:
    shape = (num_blocks, *cache.shape[1:])
    try:
        return torch.empty(shape, dtype=cache.dtype, pin_memory=cache.device.type == "cuda")
    except (RuntimeError, MemoryError) as error:  # torch's out-of-memory errors are RuntimeErrors
        size = torch.Size(shape).numel() * cache.dtype.itemsize / 2**20
        raise ConfigError(
            f"no host memory for {num_blocks} KV blocks ({size:.0f} MiB); lower swap_space or kv_offloading_size"
        ) from error
