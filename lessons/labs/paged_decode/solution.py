"""Solution of lab triton-paged-decode. The docstrings of the stub state the contract."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _paged_decode(
    query, kv, table, seq_lens, out, max_blocks, window, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do one head of one row, a block of the cache at a time."""
    row, head = tl.program_id(0), tl.program_id(1)
    column, slot = tl.arange(0, DIM), tl.arange(0, BLOCK)
    at = (row * HEADS + head).to(tl.int64) * DIM + column
    q = tl.load(query + at) * scale
    end = tl.load(seq_lens + row)
    begin = tl.where(window > 0, tl.maximum(end - window, 0), 0)
    peak, mass, mixed = -float("inf"), 0.0, tl.zeros([DIM], tl.float32)
    for number in range(begin // BLOCK, (end + BLOCK - 1) // BLOCK):
        block = tl.load(table + row * max_blocks + number).to(tl.int64)
        page = kv + (block * 2 * KV_HEADS + head // (HEADS // KV_HEADS)) * BLOCK * DIM
        inner = slot[:, None] * DIM + column[None, :]
        position = number * BLOCK + slot
        seen = (position >= begin) & (position < end)
        keys = tl.load(page + inner, mask=seen[:, None], other=0.0)
        values = tl.load(page + KV_HEADS * BLOCK * DIM + inner, mask=seen[:, None], other=0.0)
        scores = tl.where(seen, tl.sum(keys * q[None, :], axis=1), -float("inf"))
        larger = tl.maximum(peak, tl.max(scores, axis=0))
        shrink, weights = tl.exp(peak - larger), tl.exp(scores - larger)
        peak = larger
        mass = mass * shrink + tl.sum(weights, axis=0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * values, axis=0)
    tl.store(out + at, mixed / mass)


def paged_decode(
    query: Tensor, kv: Tensor, table: Tensor, seq_lens: Tensor, window: int, scale: float
) -> Tensor:
    rows, heads, dim = query.shape
    _, _, kv_heads, block_size, _ = kv.shape
    out = torch.empty_like(query)
    _paged_decode[(rows, heads)](
        query, kv, table, seq_lens, out, table.shape[1], window, scale,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, BLOCK=block_size,
    )  # fmt: skip
    return out
