"""Lab triton-paged-decode: attention of one query per row over a paged cache, with online softmax.

The seam is paged_attention of kernels/ops.py, for decode: one query per row, whose keys and values lie in blocks of the
cache. Online softmax: Milakov and Gimelshein 2018 (1805.02867); PagedAttention: Kwon et al. 2023 (2309.06180); vLLM:
csrc/attention/attention_kernels.cuh.

    row r has seq_lens[r] tokens; token t lies in block table[r][t / block_size], slot t % block_size
    score(t)  = scale * dot(query[r][h], key[t])          query head h reads kv head h / (heads / kv_heads)
    out[r][h] = sum over t of exp(score(t) - max) / sum of exp * value[t]

    chunk by chunk, with a running maximum m, mass l and output o:
        m' = max(m, max s)    p = exp(s - m')    l = l exp(m - m') + sum p    o = o exp(m - m') + sum p value

With a window w > 0 only the last w tokens are seen; 0 means no window. Slots behind the last token hold NaN, columns
of the table behind a row's last block hold anything: read neither. Scores may be as large as 1e4. Errors up to 2e-5 of
the largest value of the row are accepted.

query, out  fp32 [rows, heads, head_dim]                             seq_lens  int32 [rows], each >= 1
kv          fp32 [blocks, 2, kv_heads, block_size, head_dim]         table     int32 [rows, max_blocks]
            (0: keys, 1: values)

block_size and head_dim are powers of two from 4 on. The checks run it in Triton's interpreter.

Mask every load and store that would leave its tensor; a lane that a mask hides has no value unless `other` gives one.
Kernels store each number that a function returns or changes: torch only makes the tensors.
"""

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
    """Do one head of one row."""
    row, head = tl.program_id(0), tl.program_id(1)
    # given up to here
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
    """Return the output, like query."""
    rows, heads, dim = query.shape
    _, _, kv_heads, block_size, _ = kv.shape
    out = torch.empty_like(query)
    _paged_decode[(rows, heads)](
        query, kv, table, seq_lens, out, table.shape[1], window, scale,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, BLOCK=block_size,
    )  # fmt: skip
    return out
