"""The KV cache as bytes: read and write single blocks.

The cache is block-major (engine/worker/kv_cache.py), so a block is contiguous and moving it is a copy:

    kv       [num_blocks, layers, 2, kv_heads, block_size, head_dim]
    block i  = bytes [i * block_bytes, (i + 1) * block_bytes), the scales of a quantised cache included

With several tensors a block consists of its part of each, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.core.connector import KVIdentity


class KVBlocks:
    """Blocks of a cache, read and written from the connector's threads.

    Safe beside a running step: blocks that are read are published and no longer change, and blocks that are written
    belong to a load and are used by no row of a step.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """tensors: [num_blocks, ...] each; block i consists of row i of all of them."""
        self._parts = [tensor.view(torch.uint8).flatten(1) for tensor in tensors]
        self.num_blocks = len(tensors[0])
        self.block_bytes = sum(part.shape[1] for part in self._parts)

    def read(self, block_id: int) -> bytes:
        """Return a copy of the block."""
        return b"".join(part[block_id].cpu().numpy().tobytes() for part in self._parts)

    def write(self, block_id: int, data: bytes | bytearray | memoryview) -> None:
        """Fill the block; `data` has exactly `block_bytes` bytes."""
        if len(data) != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes, got {len(data)}")
        source = torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))
        start = 0
        for part in self._parts:
            size = part.shape[1]
            part[block_id].copy_(source[start : start + size])
            start += size


def identity_of(model_fingerprint: str, kv: Tensor, block_bytes: int) -> KVIdentity:
    """Return the identity that another engine's blocks must have; kv [num_blocks, ...]: the cache."""
    dtype = str(kv.dtype).removeprefix("torch.")
    return KVIdentity(model_fingerprint, dtype, tuple(kv.shape[1:]), block_bytes)
