"""One tile of paged attention: fetch TILE keys and values through the block table, fold them into a running softmax.

The online softmax (Milakov & Gimelshein 2018) needs no second look at the scores. For each query it carries the
highest score so far m, the sum l = sum(2^(s - m)) and the weighted values acc = sum(2^(s - m) v). When a
tile raises m, what was gathered shrinks by the same factor:

    m' = max(m, tile's highest)      l' = l 2^(m - m') + sum(2^(s - m'))      acc' = acc 2^(m - m') + 2^(s - m') V

and acc / l is the result at the end. Scores come multiplied by log2(e), because 2^x is one instruction and e^x is two.

A tile that a query cannot see at all leaves its m, l and acc as they are, bit for bit (2^(m - m) = 1, 2^-inf = 0).
So a query's result does not depend on which other queries share its program.

Where a tile's positions lie (block size 4, TILE 8):

    position       8  9 10 11 12 13 14 15        tile 1 of the row
    block table    [2]          [3]              columns position // block_size
    slot           0  1  2  3   0  1  2  3       position % block_size
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_batch import AttentionBatch

LOG2_E = 1.4426950408889634

TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
QUANTISED = {torch.float8_e4m3fn: "fp8", torch.int8: "int8"}


def types_of(query: Tensor, kv: Tensor) -> tuple[str, torch.dtype]:
    """(how the cache is quantised, the type that products take)"""
    quantised = QUANTISED.get(kv.dtype, "no")
    return quantised, query.dtype if quantised != "no" else torch.promote_types(query.dtype, kv.dtype)


def strides(query: Tensor, kv: Tensor, kv_scale: Tensor | None, batch: AttentionBatch) -> tuple[int, ...]:
    """Strides of query (2), kv (3), the scales of an int8 cache (3) and the block table, as the kernels take them."""
    scales = kv_scale.stride()[:3] if kv_scale is not None and kv.dtype == torch.int8 else (0, 0, 0)
    return (*query.stride()[:2], *kv.stride()[:3], *scales, batch.block_table.stride(0))


@triton.jit
def nothing_seen(M: tl.constexpr, DIM_PADDED: tl.constexpr):
    """m, l and acc of M queries that have seen no key."""
    acc = tl.zeros([M, DIM_PADDED], tl.float32)
    return tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32), acc


@triton.jit
def described_tile(rows, row, kv_part_stride, HEAD_DIM: tl.constexpr):
    """Keys and values from `row` on, of a tile that lies in one page.

    rows: descriptor of the whole cache as rows of HEAD_DIM values. Hopper's TMA copies a tile with one instruction of
    one thread, without registers for addresses.
    """
    key = rows.load([row.to(tl.int32), 0])
    return key, rows.load([(row + kv_part_stride // HEAD_DIM).to(tl.int32), 0])


@triton.jit
def attend_tile(
    query,  # [M, DIM_PADDED]
    query_position,  # [M]
    highest,  # m, fp32 [M]
    total,  # l, fp32 [M]
    acc,  # fp32 [M, DIM_PADDED]
    start,  # the tile is start .. start + TILE - 1
    lowest,  # positions outside lowest .. end - 1 are not read
    end,
    keys,  # of this kv head in block 0; with ROWS, the index of that row
    key_scales,  # likewise, if the cache is int8
    blocks,  # this row of the block table
    score_scale,
    kv_block_stride,
    kv_part_stride,
    scale_block_stride,
    scale_part_stride,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    QUANTISED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    rows=None,
):
    """MASKED is false for a tile that every query sees as a whole. rows: for `described_tile`."""
    position = start + tl.arange(0, TILE)
    dim = tl.arange(0, DIM_PADDED)
    if MASKED:
        readable = (position >= lowest) & (position < end)
        block = tl.load(blocks + position // BLOCK_SIZE, mask=readable, other=0).to(tl.int64)
    else:
        block = tl.load(blocks + position // BLOCK_SIZE).to(tl.int64)
    slot = position % BLOCK_SIZE
    # What lies in slots that are not readable may be NaN, which survives a weight of 0: zeros instead.
    if rows is not None:
        page = tl.load(blocks + start // BLOCK_SIZE).to(tl.int64)
        row = (page * kv_block_stride + keys) // HEAD_DIM + start % BLOCK_SIZE
        key, value = described_tile(rows, row, kv_part_stride, HEAD_DIM)
        if MASKED:
            value = tl.where(readable[:, None], value, 0.0)
    else:
        pages = keys + (block * kv_block_stride + slot * HEAD_DIM)[:, None] + dim[None, :]
        if MASKED:
            inside = readable[:, None] & (dim < HEAD_DIM)[None, :]
            key = tl.load(pages, mask=inside, other=0.0)
            value = tl.load(pages + kv_part_stride, mask=inside, other=0.0)
        elif HEAD_DIM < DIM_PADDED:
            inside = (dim < HEAD_DIM)[None, :]
            key = tl.load(pages, mask=inside, other=0.0)
            value = tl.load(pages + kv_part_stride, mask=inside, other=0.0)
        else:
            key = tl.load(pages)
            value = tl.load(pages + kv_part_stride)

    scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee") * score_scale
    if QUANTISED == "int8":
        scales = key_scales + block * scale_block_stride + slot
        readable = (position >= lowest) & (position < end)
        scores *= tl.load(scales, mask=readable, other=0.0)[None, :]
        value_scale = tl.load(scales + scale_part_stride, mask=readable, other=0.0)
        value = value.to(tl.float32) * value_scale[:, None]
    if MASKED:
        visible = readable[None, :] & (position[None, :] <= query_position[:, None])
        if WINDOW > 0:
            visible &= position[None, :] > query_position[:, None] - WINDOW
        scores = tl.where(visible, scores, float("-inf"))

    new_highest = tl.maximum(highest, tl.max(scores, axis=1))
    # A query that has seen nothing yet has -inf on both sides of the differences below: subtract 0 instead.
    base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(highest - base)
    total = total * shrink + tl.sum(weights, axis=1)
    value = value.to(query.dtype)
    acc = tl.dot(weights.to(query.dtype), value, acc * shrink[:, None], input_precision="ieee")
    return new_highest, total, acc
