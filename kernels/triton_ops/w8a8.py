"""The product of two 8-bit matrices with a scale for each row of either: the second half of int8 and of fp8.

    out[t, n] = (sum over k of xq[t, k] * qweight[n, k]) * row_scale[t] * scale[n]

Scales that are constant along K can wait until the sum is done, so the inner loop is the tensor core's own: int8
into int32, e4m3 into fp32. Hopper adds e4m3 products with fewer than fp32's bits; after each BLOCK_K columns the sum
is therefore moved to a real fp32 register (DeepSeek-V3 does the same every 128 columns).

The weights are the left operand, for the reasons given in `int4.py`: 16 tokens do not pay for 64, and one
token or many run the same instruction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.split_k import INTERPRETED, Tile, add_parts, num_splits, plan, tile_for, tile_of

BLOCK_K = 128

TILES = (
    Tile(block_t=16, block_n=64, num_warps=4, num_stages=5),  # waits for memory: many loads in flight
    Tile(block_t=32, block_n=64, num_warps=4, num_stages=4),
    Tile(block_t=64, block_n=64, num_warps=4, num_stages=4),
    Tile(block_t=128, block_n=128, num_warps=8, num_stages=3),  # waits for the tensor cores: reuse counts
)


@triton.jit
def w8a8_gemm_kernel(
    x,
    qweight,
    row_scale,
    scale,
    out,
    num_tokens,
    num_columns,
    k,
    qweight_stride,
    SPLITS: tl.constexpr,
    IN_PARTS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """x [T, K]. Program (tile, part): IN_PARTS, it writes its bare part to out [SPLITS, T, N]; else the scaled sum."""
    num_n = tl.cdiv(num_columns, BLOCK_N)
    n_block, t_block = tile_of(tl.program_id(0), num_n, tl.cdiv(num_tokens, BLOCK_T), BAND=8)
    n = (n_block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    t = (t_block * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    n_inside, t_inside = n < num_columns, t < num_tokens

    columns = tl.arange(0, BLOCK_K)
    x_tile = x + t[:, None] * k + columns[None, :]
    w_tile = qweight + n[:, None] * qweight_stride + columns[None, :]
    k_per_split = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLITS) * BLOCK_K
    first_split = tl.program_id(1)
    last_split = first_split + 1 if IN_PARTS else SPLITS
    SUM: tl.constexpr = tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32

    total = tl.zeros([BLOCK_N, BLOCK_T], SUM)
    for split in range(first_split, last_split):
        part = tl.zeros([BLOCK_N, BLOCK_T], SUM)
        for start in range(split * k_per_split, tl.minimum((split + 1) * k_per_split, k), BLOCK_K):
            k_inside = (columns < k - start)[None, :]
            w = tl.load(w_tile + start, mask=n_inside[:, None] & k_inside, other=0.0)
            xq = tl.load(x_tile + start, mask=t_inside[:, None] & k_inside, other=0.0)
            if UPCAST:
                w, xq = w.to(tl.float32), xq.to(tl.float32)
            part = tl.dot(
                w, tl.trans(xq), part, input_precision="ieee", max_num_imprecise_acc=BLOCK_K, out_dtype=SUM
            )
        total += part

    row = t
    if IN_PARTS:
        row += first_split * num_tokens
    else:
        row_scales = tl.load(row_scale + t, mask=t_inside, other=0)[None, :]
        total = total.to(tl.float32) * row_scales * tl.load(scale + n, mask=n_inside, other=0)[:, None]
    place = out + row[None, :] * num_columns + n[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=n_inside[:, None] & t_inside[None, :])


def w8a8_product(xq: Tensor, row_scale: Tensor, qweight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """xq [T, K] @ qweight.T with the scales, in `dtype`: [T, N]. xq is contiguous, both int8 or both e4m3."""
    num_tokens, k = xq.shape
    num_columns = qweight.shape[0]
    out = torch.empty(num_tokens, num_columns, dtype=dtype, device=xq.device)
    if not out.numel():
        return out
    integers = xq.dtype == torch.int8
    tile = tile_for(num_tokens, TILES)
    splits = num_splits(num_columns, k)
    grid, target = plan(out, tile, splits, torch.int32 if integers else torch.float32)
    in_parts = target is not out
    w8a8_gemm_kernel[grid](
        *(xq, qweight, row_scale, scale, target),
        *(num_tokens, num_columns, k, qweight.stride(0)),
        # Integer sums are the same in any bracket, so a single program needs only one.
        SPLITS=1 if integers and not in_parts else splits,
        IN_PARTS=in_parts,
        # The interpreter cannot multiply e4m3. In fp32 the numbers and their products are exact.
        UPCAST=INTERPRETED and not integers,
        BLOCK_N=tile.block_n,
        BLOCK_K=BLOCK_K,
        **tile.options,
    )
    if in_parts:
        add_parts(target, row_scale, scale, out)
    return out
