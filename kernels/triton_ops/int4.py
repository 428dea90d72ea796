"""W4A16: 16-bit activations times 4-bit weights, which become numbers only in registers.

    out[t, n] = sum over groups g of scale[n, g] * (sum over k in g of x[t, k] * (nibble[n, k] - zero[n, g]))

Decode is limited by the bytes of the matrix: a quarter of bf16's. So everything around the packed bytes must be cheap.

 1. A byte holds the columns 2j and 2j + 1. A dot product does not mind the order of K, so the nibbles are never
    interleaved: the low ones meet the even columns of x, the high ones the odd columns. Only the small side, x,
    is taken apart.

        x tile [BLOCK_T, BLOCK_K]  --split-->  even, odd                        acc = low @ even.T + high @ odd.T
        bytes  [BLOCK_N, BLOCK_K / 2]  --and, shift-->  low, high

 2. A nibble becomes a float without a conversion: put into the mantissa of 1024 (fp16, 0x6400) or 128 (bf16, 0x4300) it
    adds itself, 0x6400 | q = 1024 + q. Subtracting 1024 + zero leaves q - zero, exactly.

 3. The scale is applied to the group's sum in fp32, not to each weight: the products are exact, and for few tokens
    there are far fewer sums than weights.

 4. The weights are the left operand, so the tensor core's long side (64 rows) runs along N and the short one
    along the tokens: 16 tokens do not pay for 64. It also means that one token and 4,096 use the same instruction
    along K, and with `split_k` the same order of additions: a row's bits do not depend on the batch.

Sources: AWQ (Lin et al. 2023), Marlin (Frantar et al. 2024) for keeping the dequantisation in registers, "Who Says
Elephants Can't Run" (Kim et al. 2022) for the mantissa trick.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.split_k import Tile, add_parts, num_splits, plan, tile_for, tile_of, unlike

MIN_BLOCK_K = 32
MAX_BLOCK_K = 64
"""One step along K lies within a group. With 128 the large tile does not fit into sm_80's registers."""

TILES = (
    Tile(block_t=16, block_n=64, num_warps=4, num_stages=6),  # waits for memory: many small loads in flight
    Tile(block_t=32, block_n=64, num_warps=4, num_stages=5),
    Tile(block_t=64, block_n=64, num_warps=4, num_stages=4),
    Tile(block_t=128, block_n=128, num_warps=8, num_stages=4),  # waits for the tensor cores: reuse counts
)


@triton.jit
def less_zero(nibble, zero, BF16: tl.constexpr):
    """nibble - zero for values 0 to 15, exactly, in the 16-bit type whose mantissa they are put into."""
    if BF16:
        nibble = (nibble.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
        zero = (zero.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
    else:
        nibble = (nibble.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)
        zero = (zero.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)
    return nibble - zero


@triton.jit
def int4_gemm_kernel(
    x,
    qweight,
    scale,
    zero,
    out,
    num_tokens,
    num_columns,
    num_groups,
    x_stride,
    qweight_stride,
    scale_stride,
    zero_stride,
    GROUP_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    IN_PARTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Program (tile, part): IN_PARTS, it writes its part to out [SPLITS, T, N]; else it takes all in turn."""
    num_n = tl.cdiv(num_columns, BLOCK_N)
    n_block, t_block = tile_of(tl.program_id(0), num_n, tl.cdiv(num_tokens, BLOCK_T), BAND=8)
    n = (n_block * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    t = (t_block * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    n_inside, t_inside = n < num_columns, t < num_tokens

    x_tile = x + t[:, None] * x_stride + tl.arange(0, BLOCK_K)[None, :]
    q_tile = qweight + n[:, None] * qweight_stride + tl.arange(0, BLOCK_K // 2)[None, :]
    groups_per_split = tl.cdiv(num_groups, SPLITS)
    first_split = tl.program_id(1)
    last_split = first_split + 1 if IN_PARTS else SPLITS

    total = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for split in range(first_split, last_split):
        first = split * groups_per_split
        last = tl.minimum(first + groups_per_split, num_groups)
        part = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
        for k in range(first * GROUP_SIZE, last * GROUP_SIZE, BLOCK_K):
            group = k // GROUP_SIZE
            packed = tl.load(q_tile + k // 2, mask=n_inside[:, None], other=0)
            group_scale = tl.load(scale + n * scale_stride + group, mask=n_inside, other=0).to(tl.float32)
            group_zero = tl.load(zero + n * zero_stride + group, mask=n_inside, other=0)[:, None]
            columns = tl.load(x_tile + k, mask=t_inside[:, None], other=0)
            even, odd = tl.split(tl.reshape(columns, (BLOCK_T, BLOCK_K // 2, 2)))
            BF16: tl.constexpr = x.dtype.element_ty == tl.bfloat16
            low = less_zero(packed & 15, group_zero, BF16).to(columns.dtype)
            high = less_zero(packed >> 4, group_zero, BF16).to(columns.dtype)
            sums = tl.dot(low, tl.trans(even), input_precision="ieee")
            sums = tl.dot(high, tl.trans(odd), sums, input_precision="ieee")
            part += sums * group_scale[:, None]
        total += part

    row = t + (first_split * num_tokens if IN_PARTS else 0)
    place = out + row[None, :] * num_columns + n[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=n_inside[:, None] & t_inside[None, :])


def int4_linear(
    x: Tensor,
    qweight: Tensor,
    scale: Tensor,
    zero: Tensor,
    group_size: int,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    num_tokens, num_columns = x.shape[0], qweight.shape[0]
    out = torch.empty(num_tokens, num_columns, dtype=out_dtype or x.dtype, device=x.device)
    if not out.numel():
        return out
    tile = tile_for(num_tokens, TILES)
    splits = min(num_splits(num_columns, x.shape[1]), scale.shape[1])
    grid, target = plan(out, tile, splits, torch.float32)
    int4_gemm_kernel[grid](
        *(x, qweight, scale, zero, target),
        *(num_tokens, num_columns, scale.shape[1]),
        *(x.stride(0), qweight.stride(0), scale.stride(0), zero.stride(0)),
        GROUP_SIZE=group_size,
        SPLITS=splits,
        IN_PARTS=target is not out,
        BLOCK_N=tile.block_n,
        BLOCK_K=min(group_size & -group_size, MAX_BLOCK_K),
        **tile.options,
    )
    if target is not out:
        add_parts(target, None, None, out)
    return out


def unsupported_int4_linear(
    x: Tensor, qweight: Tensor, scale: Tensor, zero: Tensor, group_size: int, *_: object
) -> str | None:
    if group_size % MIN_BLOCK_K:
        return f"group_size {group_size} is not a multiple of {MIN_BLOCK_K}"
    return unlike("x", x)


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def case(num_tokens: int, num_columns: int, k: int, dtype: torch.dtype) -> Callable[[], object]:
        x = torch.empty(num_tokens, k, dtype=dtype, device="meta")
        qweight = torch.empty(num_columns, k // 2, dtype=torch.uint8, device="meta")
        scale = torch.empty(num_columns, k // 128, dtype=dtype, device="meta")
        return lambda: int4_linear(x, qweight, scale, scale.to(torch.uint8), 128)

    return {
        "decode 1 bf16": case(1, 6144, 4096, torch.bfloat16),
        "decode 64 fp16": case(64, 4096, 14336, torch.float16),
        "prefill bf16": case(2048, 28672, 4096, torch.bfloat16),
    }
