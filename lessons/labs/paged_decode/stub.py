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


def paged_decode(
    query: Tensor, kv: Tensor, table: Tensor, seq_lens: Tensor, window: int, scale: float
) -> Tensor:
    """Return the output, like query."""
    raise NotImplementedError("write paged_decode and its kernel")
