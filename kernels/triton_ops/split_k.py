"""Common parts of the matrix products: the order of tiles, and a fixed bracketing of the sums over K.

A product of a few tokens has too few output tiles for 132 multiprocessors: 4096 columns in tiles of 64 are 64
programs. So K is cut into `num_splits` parts, each with its own program, and a second kernel adds the parts.
A product of many tokens has tiles enough, and one program takes all parts of its tile in turn:

    few tokens     program (tile, 0) -> part 0 -.
                   program (tile, 1) -> part 1 --+-> add_parts_kernel: ((part 0 + part 1) + part 2) + ...
                   program (tile, 2) -> part 2 -'
    many tokens    program (tile)    -> ((part 0 + part 1) + part 2) + ...

The number of parts depends on the matrix alone, never on the tokens, and both ways add in the same order: which
of the two runs cannot be seen in the result. That is why there is no autotuning here: a table indexed by the
number of tokens may choose the tile's size in tokens and the number of warps, but nothing along K.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS_WANTED = 256
"""About two for each multiprocessor of an H100 (132)."""
MIN_K_PER_SPLIT = 512
"""Below this, starting a part costs more than it saves."""
MAX_SPLITS = 16
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Tile(NamedTuple):
    """Tile sizes, which may differ between few and many tokens."""

    block_t: int
    block_n: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int]:
        """Arguments of a launch with this tile, but for BLOCK_N."""
        return {"BLOCK_T": self.block_t, "num_warps": self.num_warps, "num_stages": self.num_stages}


def tile_for(num_tokens: int, tiles: tuple[Tile, ...]) -> Tile:
    """The first of `tiles`, from small to large, that takes all tokens, or the largest.

    The interpreter's `tl.dot` is numpy's, whose order of additions depends on the tile: there it is always
    the first.
    """
    if INTERPRETED:
        return tiles[0]
    return next((tile for tile in tiles if num_tokens <= tile.block_t), tiles[-1])


def num_splits(num_columns: int, k: int, block_n: int = 64) -> int:
    """Parts of K for a matrix [num_columns, k]: enough programs to fill a GPU with one row of tiles."""
    wanted = triton.next_power_of_2(triton.cdiv(PROGRAMS_WANTED, triton.cdiv(num_columns, block_n)))
    return max(1, min(wanted, MAX_SPLITS, k // MIN_K_PER_SPLIT))


@triton.jit
def tile_of(program, num_n, num_t, BAND: tl.constexpr):
    """Tile (n, t) of a program. Neighbours share a band of BAND weight tiles, which then stays in the L2 cache:

    n
    0 | 0  2  4        BAND = 2: programs 0, 1, 2, ... go down a band before they step to the next t
    1 | 1  3  5
    2 | 6  8 10
    3 | 7  9 11
    """
    band = program // (BAND * num_t)
    within = program % (BAND * num_t)
    height = tl.minimum(num_n - band * BAND, BAND)
    return band * BAND + within % height, within // height


@triton.jit
def add_parts_kernel(
    parts, row_scale, column_scale, out, num_tokens, num_columns, SPLITS: tl.constexpr, BLOCK: tl.constexpr
):
    """out [T, N] = the parts [SPLITS, T, N] added in order, then scaled. Program (t, j): BLOCK columns of row t."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_columns
    total = tl.zeros([BLOCK], parts.dtype.element_ty)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * num_tokens + row) * num_columns + column, mask=inside, other=0)
    if row_scale is not None:
        column_scales = tl.load(column_scale + column, mask=inside, other=0)
        total = total.to(tl.float32) * tl.load(row_scale + row) * column_scales
    tl.store(out + row * num_columns + column, total.to(out.dtype.element_ty), mask=inside)


def add_parts(parts: Tensor, row_scale: Tensor | None, column_scale: Tensor | None, out: Tensor) -> None:
    """Launch `add_parts_kernel`: parts [splits, T, N] -> out [T, N]."""
    splits, num_tokens, num_columns = parts.shape
    grid = (num_tokens, triton.cdiv(num_columns, 512))
    add_parts_kernel[grid](
        parts, row_scale, column_scale, out, num_tokens, num_columns, SPLITS=splits, BLOCK=512, num_warps=4
    )


def plan(out: Tensor, tile: Tile, splits: int, dtype: torch.dtype) -> tuple[tuple[int, int], Tensor]:
    """(grid, what the programs write to): `out` [T, N], or parts [splits, T, N] of `dtype` where that fills a GPU."""
    num_tokens, num_columns = out.shape
    num_tiles = triton.cdiv(num_columns, tile.block_n) * triton.cdiv(num_tokens, tile.block_t)
    if splits <= 1 or num_tiles >= PROGRAMS_WANTED:
        return (num_tiles, 1), out
    return (num_tiles, splits), torch.empty(splits, *out.shape, dtype=dtype, device=out.device)


def unlike(name: str, tensor: Tensor) -> str | None:
    """Reason why this tensor's type is not supported; None if it is."""
    if tensor.dtype in (torch.float16, torch.bfloat16, torch.float32):
        return None
    return f"{name} is {tensor.dtype}; supported: float16, bfloat16, float32"
