"""Attention over the paged cache: gather a row's blocks, then softmax attention as in the textbook."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.reference.kv_write import dequantise_pages
from kernels.reference.precision import wide


def paged_attention(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    kv_scale: Tensor | None = None,
) -> Tensor:
    block_size = kv.shape[3]
    out = torch.zeros_like(query)
    starts = batch.query_start_loc.tolist()
    for row, seq_len in enumerate(batch.seq_lens.tolist()):
        start, end = starts[row], starts[row + 1]
        num_blocks = -(-seq_len // block_size)
        block_ids = batch.block_table[row, :num_blocks].long()
        pages = wide(dequantise_pages(kv[block_ids], kv_scale, block_ids))
        key, value = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :seq_len]
        out[start:end] = _attend_one(wide(query[start:end]), key, value, scale, sliding_window)
    return out


def _attend_one(
    query: Tensor, key: Tensor, value: Tensor, scale: float, sliding_window: int | None
) -> Tensor:
    """Softmax attention of one request: query [n, heads, head_dim], key and value [kv_heads, seq_len, head_dim]."""
    num_queries, num_heads, _ = query.shape
    num_kv_heads, seq_len, _ = key.shape
    key = key.repeat_interleave(num_heads // num_kv_heads, dim=0)
    value = value.repeat_interleave(num_heads // num_kv_heads, dim=0)
    scores = torch.einsum("qhd,hkd->hqk", query, key) * scale

    query_position = torch.arange(seq_len - num_queries, seq_len, device=query.device)[:, None]
    key_position = torch.arange(seq_len, device=query.device)[None, :]
    visible = key_position <= query_position
    if sliding_window is not None:
        visible &= key_position > query_position - sliding_window
    probabilities = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,hkd->qhd", probabilities, value)
