"""Grouped product: rows sorted by group (expert), each group with its own matrix; one launch, no look at the sizes.

    rows    0 1 2 3 4 | 5 | 6 7 8 9 ...         tiles of BLOCK_T = 4 rows never cross a group:
    group       0     | 1 |    2                0-3, 4 | 5 | 6-9, ...

How many tiles a group needs only the GPU knows. There are at most T / BLOCK_T + groups, so that many programs start
along the rows; each adds up the tiles of the groups before it, finds its own, or has nothing to do. Rows
after the last group's end are padding and become zeros: they count as one more group.

Source: MegaBlocks (Gale et al. 2022); the tile schedule replaces vLLM's moe_align_block_size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.split_k import Tile, tile_for, unlike

BLOCK_K = 64

TILES = (
    Tile(block_t=16, block_n=64, num_warps=4, num_stages=5),
    Tile(block_t=64, block_n=128, num_warps=4, num_stages=4),
    Tile(block_t=128, block_n=128, num_warps=8, num_stages=3),
)


@triton.jit
def find_tile(group_ends, tile, num_tokens, num_groups, BLOCK_T: tl.constexpr, GROUPS: tl.constexpr):
    """(group, first row, end of the group) of a tile; GROUPS is a power of two > num_groups."""
    group = tl.arange(0, GROUPS)
    end = tl.load(group_ends + group, mask=group < num_groups, other=num_tokens)
    start = tl.load(group_ends + group - 1, mask=(group > 0) & (group <= num_groups), other=0)
    start = tl.where(group <= num_groups, start, num_tokens)
    num_tiles = tl.cdiv(end - start, BLOCK_T)
    tiles_before = tl.cumsum(num_tiles, 0) - num_tiles
    mine = (tiles_before <= tile) & (tile < tiles_before + num_tiles)
    first_row = tl.sum(tl.where(mine, start + (tile - tiles_before) * BLOCK_T, 0), 0)
    # A program without a tile gets an empty one: its group is the padding, which ends at row 0.
    own_group = tl.min(tl.where(mine, group, num_groups), 0)
    return own_group, first_row, tl.sum(tl.where(mine, end, 0), 0)


@triton.jit
def grouped_gemm_kernel(
    x,
    weight,
    group_ends,
    out,
    num_tokens,
    num_columns,
    k,
    num_groups,
    x_stride,
    group_stride,
    weight_stride,
    GROUPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Program (n block, tile of rows): out^T tile = weight[group] tile @ x^T tile, the weights on the left as in
    `int4.py`. Programs that run together differ in n first, so they share the rows of x."""
    group, first_row, end = find_tile(
        group_ends, tl.program_id(1), num_tokens, num_groups, BLOCK_T=BLOCK_T, GROUPS=GROUPS
    )
    if first_row >= end:
        return
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    t = (first_row + tl.arange(0, BLOCK_T)).to(tl.int64)
    n_inside, t_inside = n < num_columns, t < end
    total = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    if group < num_groups:
        columns = tl.arange(0, BLOCK_K)
        x_tile = x + t[:, None] * x_stride + columns[None, :]
        w_tile = weight + group.to(tl.int64) * group_stride + n[:, None] * weight_stride + columns[None, :]
        for start in range(0, k, BLOCK_K):
            k_inside = (columns < k - start)[None, :]
            w = tl.load(w_tile + start, mask=n_inside[:, None] & k_inside, other=0.0)
            rows = tl.load(x_tile + start, mask=t_inside[:, None] & k_inside, other=0.0)
            total = tl.dot(w, tl.trans(rows), total, input_precision="ieee")
    place = out + t[None, :] * num_columns + n[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=n_inside[:, None] & t_inside[None, :])


def grouped_linear(x: Tensor, weight: Tensor, group_ends: Tensor) -> Tensor:
    num_tokens, k = x.shape
    num_groups, num_columns, _ = weight.shape
    out = torch.empty(num_tokens, num_columns, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    tile = tile_for(triton.cdiv(num_tokens, num_groups), TILES)  # for groups of the average size
    most_tiles = num_tokens // tile.block_t + num_groups + 1
    grouped_gemm_kernel[(triton.cdiv(num_columns, tile.block_n), most_tiles)](
        *(x, weight, group_ends, out),
        *(num_tokens, num_columns, k, num_groups),
        *(x.stride(0), weight.stride(0), weight.stride(1)),
        GROUPS=triton.next_power_of_2(num_groups + 1),
        BLOCK_N=tile.block_n,
        BLOCK_K=BLOCK_K,
        **tile.options,
    )
    return out


def unsupported_grouped_linear(x: Tensor, weight: Tensor, group_ends: Tensor) -> str | None:
    if weight.dtype != x.dtype:
        return f"x is {x.dtype} and weight {weight.dtype}; both must have one type"
    return unlike("x", x)


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def case(num_tokens: int) -> Callable[[], object]:
        """The first product of Mixtral's 8 experts."""
        x = torch.empty(num_tokens, 4096, dtype=torch.bfloat16, device="meta")
        weight = torch.empty(8, 2 * 14336, 4096, dtype=torch.bfloat16, device="meta")
        ends = torch.empty(8, dtype=torch.int32, device="meta")
        return lambda: grouped_linear(x, weight, ends)

    return {"decode 64": case(64), "prefill 512": case(512), "prefill 4096": case(4096)}
