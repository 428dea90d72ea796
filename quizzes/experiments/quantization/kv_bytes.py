"""E32: bytes of a KV block by cache type, scales included, from the engine's own layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Bytes:
    bf16: Annotated[int, "B"]
    """Per block."""
    fp8: Annotated[int, "B"]
    int8_per_token_head: Annotated[int, "B"]
    int8_scale_bytes: Annotated[int, "B"]
    """Of that, scales."""
    fp8_ratio: Annotated[float, "x"]
    """bf16 over fp8."""
    int8_ratio: Annotated[float, "x"]
    """bf16 over int8_per_token_head: how many times more tokens fit."""


@experiment("E32", "E01")
def kv_bytes(
    ctx: Context,
    *,
    num_layers: Annotated[int, Field(ge=1, le=200)] = 32,
    kv_heads: Annotated[int, Field(ge=1, le=128)] = 8,
    head_dim: Annotated[int, Field(ge=8, le=512)] = 128,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
) -> Bytes:
    """One block of `block_size` tokens in each type, as `engine/quant/kv_cache.py` lays it out."""
    import torch

    from engine.quant.kv_cache import KVCacheLayout

    types = (torch.bfloat16, torch.float8_e4m3fn, torch.int8)
    bf16, fp8, int8 = (KVCacheLayout(num_layers, kv_heads, block_size, head_dim, dtype) for dtype in types)
    return Bytes(
        bf16.bytes_per_block,
        fp8.bytes_per_block,
        int8.bytes_per_block,
        int8.scale_bytes,
        bf16.bytes_per_block / fp8.bytes_per_block,
        bf16.bytes_per_block / int8.bytes_per_block,
    )
