"""Lab triton-split-kv: attention over a long row in splits, and the reduction of (m, l, acc).

The seam is paged_attention of kernels/ops.py, for decode: one query per row, keys and values in blocks of the cache.
One long row leaves most of a GPU idle, so its tokens are split (Flash-Decoding: Dao et al. 2023; vLLM:
v1/attention/ops/triton_unified_attention.py, reduce_segments).

    row       |---- split 0 ----|---- split 1 ----|---- split 2 ----|--    split s: tokens from s * split_size on
    window                            |<------------------------------>|   the last `window` tokens are seen; 0: all

    decode_splits    for each row, head and split, over the tokens of the split that are seen:
                         peak = max score   mass = sum exp(score - peak)   acc = sum exp(score - peak) * value
                     without such a token: peak = -INFINITY, mass = 0; acc is not read, whatever it holds

    merge_splits     for each row and head, with M the largest peak of its splits:
                         out = sum exp(peak - M) * acc / sum exp(peak - M) * mass

    row r has seq_lens[r] tokens; token t lies in block table[r][t / block_size], slot t % block_size
    score(t) = scale * dot(query[r][h], key[t])           query head h reads kv head h / (heads / kv_heads)

Papers call peak, mass and acc m, l and o. They depend on the row only, with the same bits alone and in a batch, and
whatever `splits` is. Slots behind the last token hold NaN, so may acc of a split without a token; columns of the table
behind a row's last block hold anything: read none of them. Scores may be as large as 1e4. Accepted errors: 2e-5 of the
largest score for peak, of mass for mass, of mass times the row's largest value for acc, of that value for out.

query, out  fp32 [rows, heads, head_dim]                       peak, mass  fp32 [rows, heads, splits]
kv          fp32 [blocks, 2, kv_heads, block_size, head_dim]   acc         fp32 [rows, heads, splits, head_dim]
            (0: keys, 1: values)                               table       int32 [rows, max_blocks]
seq_lens    int32 [rows], each >= 1

split_size is a multiple of block_size, and splits * split_size is at least each of seq_lens.

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
def _decode_splits(
    query, kv, table, seq_lens, peak, mass, acc, max_blocks, window, splits, split_size, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do one split of one head of one row."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # given up to here
    column, slot = tl.arange(0, DIM), tl.arange(0, BLOCK)
    place = (row * HEADS + head).to(tl.int64) * splits + split
    q = tl.load(query + (row * HEADS + head).to(tl.int64) * DIM + column) * scale
    length = tl.load(seq_lens + row)
    begin = tl.maximum(split * split_size, tl.where(window > 0, length - window, 0))
    end = tl.minimum((split + 1) * split_size, length)
    highest, total, mixed = -float("inf"), 0.0, tl.zeros([DIM], tl.float32)
    for number in range(begin // BLOCK, (end + BLOCK - 1) // BLOCK):
        block = tl.load(table + row * max_blocks + number).to(tl.int64)
        page = kv + (block * 2 * KV_HEADS + head // (HEADS // KV_HEADS)) * BLOCK * DIM
        inner = slot[:, None] * DIM + column[None, :]
        position = number * BLOCK + slot
        seen = (position >= begin) & (position < end)
        keys = tl.load(page + inner, mask=seen[:, None], other=0.0)
        values = tl.load(page + KV_HEADS * BLOCK * DIM + inner, mask=seen[:, None], other=0.0)
        scores = tl.where(seen, tl.sum(keys * q[None, :], axis=1), -float("inf"))
        larger = tl.maximum(highest, tl.max(scores, axis=0))
        shrink, weights = tl.exp(highest - larger), tl.exp(scores - larger)
        highest = larger
        total = total * shrink + tl.sum(weights, axis=0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * values, axis=0)
    tl.store(peak + place, highest)
    tl.store(mass + place, total)
    tl.store(acc + place * DIM + column, mixed)


@triton.jit
def _merge_splits(peak, mass, acc, out, splits, HEADS: tl.constexpr, DIM: tl.constexpr):
    """Do one head of one row."""
    row, head = tl.program_id(0), tl.program_id(1)
    # given up to here
    column = tl.arange(0, DIM)
    head_of_row = (row * HEADS + head).to(tl.int64)
    place = head_of_row * splits
    highest, total, mixed = -float("inf"), 0.0, tl.zeros([DIM], tl.float32)
    for split in range(splits):
        highest = tl.maximum(highest, tl.load(peak + place + split))
    for split in range(splits):
        own = tl.load(peak + place + split)
        weight = tl.exp(own - highest)
        total += weight * tl.load(mass + place + split)
        at = acc + (place + split) * DIM + column
        mixed += weight * tl.load(at, mask=column < tl.where(own > -float("inf"), DIM, 0), other=0.0)
    tl.store(out + head_of_row * DIM + column, mixed / total)


def decode_splits(
    query: Tensor, kv: Tensor, table: Tensor, seq_lens: Tensor,
    window: int, splits: int, split_size: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return peak, mass and acc."""
    rows, heads, dim = query.shape
    _, _, kv_heads, block_size, _ = kv.shape
    peak, mass = (torch.empty(rows, heads, splits, device=query.device) for _ in range(2))
    acc = torch.empty(rows, heads, splits, dim, device=query.device)
    _decode_splits[(rows, heads, splits)](
        query, kv, table, seq_lens, peak, mass, acc, table.shape[1], window, splits, split_size, scale,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, BLOCK=block_size,
    )  # fmt: skip
    return peak, mass, acc


def merge_splits(peak: Tensor, mass: Tensor, acc: Tensor) -> Tensor:
    """Return out [rows, heads, head_dim]."""
    rows, heads, splits, dim = acc.shape
    out = torch.empty(rows, heads, dim, device=acc.device)
    _merge_splits[(rows, heads)](peak, mass, acc, out, splits, HEADS=heads, DIM=dim)
    return out
