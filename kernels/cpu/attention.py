"""Paged attention in C++, see `attention.cpp`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.cpu.build import function
from kernels.cpu.dtypes import FLOATS, unlike
from kernels.cpu.kv_write import cache_arguments, unsupported_cache
from kernels.cpu.memory import empty

_paged_attention = function("paged_attention", "plll" + "plpp" + "plll" + "fl" + "pllpl" + "lll")


def paged_attention(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    kv_scale: Tensor | None = None,
) -> Tensor:
    tokens, heads, _ = query.shape
    _, _, kv_heads, block_size, head_dim = kv.shape
    out = empty(query.shape, query.dtype)
    starts, seq_lens, table = batch.query_start_loc, batch.seq_lens, batch.block_table
    _paged_attention(
        *(query.data_ptr(), query.stride(0), query.stride(1), FLOATS[query.dtype]),
        *(out.data_ptr(), tokens, starts.data_ptr(), seq_lens.data_ptr()),
        *(table.data_ptr(), table.stride(0), seq_lens.shape[0], heads),
        *(scale, sliding_window or 0),
        *cache_arguments(kv, kv_scale),
        *(kv_heads, block_size, head_dim),
    )
    return out


def unsupported_paged_attention(
    query: Tensor, kv: Tensor, batch: AttentionBatch, *, kv_scale: Tensor | None = None, **options: Any
) -> str | None:
    return unlike(query) or unsupported_cache(kv, kv_scale)
