"""Lab triton-kv-write: write a step's keys and values to their slots of the paged cache.

The seam is reshape_and_cache of kernels/ops.py; every attention layer calls it once a step, before it attends. vLLM:
csrc/cache_kernels.cu, reshape_and_cache_flash.

    slot = slots[t] = block * block_size + offset       where token t of this step goes
    kv[block][0][h][offset] = key[t][h]                 h: kv head, a vector of head_dim numbers
    kv[block][1][h][offset] = value[t][h]

A slot of -1 is padding: it writes nothing, in particular not the last block. All other slots of kv keep their bits.
Slots of one call differ, in any order.

key, value  fp32 [tokens, kv_heads, head_dim]; views of one qkv tensor: see key.stride(0)
kv          fp32 [blocks, 2, kv_heads, block_size, head_dim], contiguous
slots       int64 [tokens]

head_dim is any size >= 1. The checks run it in Triton's interpreter.

Mask every load and store that would leave its tensor; a lane that a mask hides has no value unless `other` gives one.
Kernels store each number that a function returns or changes: torch only makes the tensors.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _reshape_and_cache(
    key, value, kv, slots, stride,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Do one token. WIDTH: a power of two, at least KV_HEADS * DIM."""
    token = tl.program_id(0)
    # given up to here
    slot = tl.load(slots + token)
    column = tl.arange(0, WIDTH)
    inside = column < KV_HEADS * DIM
    page = BLOCK_SIZE * DIM
    block = slot // BLOCK_SIZE * 2 * KV_HEADS * page
    at = block + column // DIM * page + slot % BLOCK_SIZE * DIM + column % DIM
    start = token.to(tl.int64) * stride
    if slot >= 0:
        tl.store(kv + at, tl.load(key + start + column, mask=inside), mask=inside)
        tl.store(kv + at + KV_HEADS * page, tl.load(value + start + column, mask=inside), mask=inside)


def reshape_and_cache(key: Tensor, value: Tensor, kv: Tensor, slots: Tensor) -> None:
    """Write in place into kv. The tokens of key and value have the same stride."""
    tokens, kv_heads, dim = key.shape
    _reshape_and_cache[(tokens,)](
        key, value, kv, slots, key.stride(0),
        KV_HEADS=kv_heads, DIM=dim, BLOCK_SIZE=kv.shape[3], WIDTH=triton.next_power_of_2(kv_heads * dim),
    )  # fmt: skip
