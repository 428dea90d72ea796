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


@triton.jit
def _merge_splits(peak, mass, acc, out, splits, HEADS: tl.constexpr, DIM: tl.constexpr):
    """Do one head of one row."""
    row, head = tl.program_id(0), tl.program_id(1)


def decode_splits(
    query: Tensor, kv: Tensor, table: Tensor, seq_lens: Tensor,
    window: int, splits: int, split_size: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return peak, mass and acc."""
    raise NotImplementedError("write decode_splits and its kernel")


def merge_splits(peak: Tensor, mass: Tensor, acc: Tensor) -> Tensor:
    """Return out [rows, heads, head_dim]."""
    raise NotImplementedError("write merge_splits and its kernel")
