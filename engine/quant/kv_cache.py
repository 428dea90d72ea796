"""The KV cache in 8 bits: how keys and values are stored, and where their scales lie.

    fp8 (e4m3)            one scale per layer for keys, one for values, fixed    half of bf16's bytes
    fp8_e5m2              the same scales; range 57344 instead of 448, and       the same
                          2 bits of mantissa instead of 3: about twice the error
    int8_per_token_head   max|x| / 127 of every token's head, stored beside it   the same, and 4 bytes per head

The scales of an int8 cache lie at the end of the block they belong to, so a block stays one run of bytes: a copy
of a block (swap, disk, another engine) has its scales.

    block    [ layer 0: keys, values | layer 1: keys, values | ... ][ scales of layer 0 | scales of layer 1 | ... ]
               int8 [2, kv_heads, block_size, head_dim] each         fp32 [2, kv_heads, block_size] each

Sources: vLLM model_executor/layers/quantization/kv_cache.py (fp8), v1/attention (int8_per_token_head);
KIVI (Liu et al. 2024) and KVQuant (Hooper et al. 2024) for why per token and head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.backend import kv_cache_shape
from engine.config import ConfigError

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
QUANTISED = {"fp8": E4M3, "fp8_e4m3": E4M3, "fp8_e5m2": E5M2, "int8_per_token_head": torch.int8}
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def cache_dtype(name: str, model_dtype: str) -> torch.dtype:
    """The storage type that `kv_cache_dtype` names; auto is the model's. ConfigError for an unknown name."""
    dtypes = {**FLOATS, **QUANTISED}
    resolved = model_dtype if name == "auto" else name
    if resolved not in dtypes:
        raise ConfigError(f"unsupported kv_cache_dtype {name!r}; supported: auto, {', '.join(dtypes)}")
    return dtypes[resolved]


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """Shape and type of one block."""

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    @property
    def data_bytes(self) -> int:
        """Keys and values of a block, all layers."""
        return torch.Size(self._shape(1)).numel() * self.dtype.itemsize

    @property
    def scale_bytes(self) -> int:
        count = 2 * self.num_layers * self.num_kv_heads * self.block_size
        return 4 * count if self.dtype == torch.int8 else 0

    @property
    def bytes_per_block(self) -> int:
        return self.data_bytes + self.scale_bytes

    def _shape(self, num_blocks: int) -> tuple[int, ...]:
        return kv_cache_shape(num_blocks, self.num_layers, self.num_kv_heads, self.block_size, self.head_dim)

    def over(self, memory: Tensor) -> KVCache:
        """The cache that fills `memory`, a tensor of bytes [num_blocks * bytes_per_block], zeroed by the caller."""
        blocks = memory.view(-1, self.bytes_per_block)
        num_blocks = blocks.shape[0]
        kv = blocks[:, : self.data_bytes].view(self.dtype).view(self._shape(num_blocks))
        scales: list[Tensor] | None = None
        if self.dtype == torch.int8:
            shape = (num_blocks, self.num_layers, 2, self.num_kv_heads, self.block_size)
            stored = blocks[:, self.data_bytes :].view(torch.float32).view(shape)
            scales = list(stored.unbind(1))
        elif self.dtype in (E4M3, E5M2):
            scales = [torch.ones(2, device=memory.device) for _ in range(self.num_layers)]
        return KVCache(blocks, kv, scales)


@dataclass(frozen=True, slots=True)
class KVCache:
    """The memory of a cache, and its two views."""

    blocks: Tensor  # uint8 [num_blocks, bytes_per_block]: what to copy to move blocks, scales included
    kv: Tensor  # [num_blocks, layers, 2, kv_heads, block_size, head_dim], strided between blocks
    scales: list[Tensor] | None
    """Per layer: int8 fp32 [num_blocks, 2, kv_heads, block_size]; fp8 fp32 [2], 1 unless set; None for floats."""
