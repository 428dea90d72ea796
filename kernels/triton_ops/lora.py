"""Many LoRA adapters in one batch: y += scaling * (x @ A.T) @ B.T, where every token names its own A and B.

 1. sort      token indices by adapter, so that tokens of one adapter lie together; tokens without one are left out

        token_adapter   2 0 -1 2 0          order   1 4 | 0 3        start of adapter 0, 1, 2, end   0 2 2 4

 2. shrink    a tile is BLOCK_T tokens of one adapter. Few outputs (rank), long sums (K): K is cut into parts
              that depend on the matrix alone, and a second kernel adds them in order
 3. expand    many outputs (N), short sums (rank): one program for BLOCK_N columns of a tile

The grid has room for the worst case, all tokens with one adapter; what has no tokens returns at once. The limit is
memory: each A and B in use is read once for a tile of tokens, 64 adapters of rank 16 on 4096 x 4096 are 16.8 MB.

Sources: Punica (Chen et al. 2023, SGMV), S-LoRA (Sheng et al. 2023); grid as in vLLM lora/ops/triton_ops. The
order of additions is fixed, where those use atomics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.split_k import Tile, tile_for, unlike

SORT_BLOCK = 1024
BLOCK_K = 64
K_PER_SPLIT = 1024
BLOCK_N = 64
MAX_BLOCK_R = 32
_TF32_BITS = tl.constexpr(-(1 << 13))  # all but the last 13 of 23 bits of mantissa

TILES = (
    Tile(block_t=16, block_n=BLOCK_N, num_warps=4, num_stages=4),  # decode: a few tokens for each adapter
    Tile(block_t=64, block_n=BLOCK_N, num_warps=4, num_stages=3),  # prefill
)


# --- 1. sort -------------------------------------------------------------------------------------------------


@triton.jit
def sort_by_adapter_kernel(token_adapter, order, starts, num_tokens, num_adapters, BLOCK: tl.constexpr):
    """Counting sort without a counter in common: program a counts the tokens of lower adapters, then places its own."""
    adapter = tl.program_id(0)
    position = 0
    for first in range(0, num_tokens, BLOCK):
        token = first + tl.arange(0, BLOCK)
        other = tl.load(token_adapter + token, mask=token < num_tokens, other=-1)
        position += tl.sum(((other >= 0) & (other < adapter)).to(tl.int32), 0)
    tl.store(starts + adapter, position)
    for first in range(0, num_tokens, BLOCK):
        token = first + tl.arange(0, BLOCK)
        mine = (tl.load(token_adapter + token, mask=token < num_tokens, other=-1) == adapter).to(tl.int32)
        tl.store(order + position + tl.cumsum(mine, 0) - 1, token, mask=mine > 0)
        position += tl.sum(mine, 0)
    if adapter == num_adapters - 1:
        tl.store(starts + num_adapters, position)


def sort_by_adapter(token_adapter: Tensor, num_adapters: int) -> tuple[Tensor, Tensor]:
    """(order int32 [T], starts int32 [adapters + 1]): the tokens of adapter a are order[starts[a] : starts[a + 1]]."""
    order = torch.empty_like(token_adapter)
    starts = torch.empty(num_adapters + 1, dtype=torch.int32, device=token_adapter.device)
    sort_by_adapter_kernel[(num_adapters,)](
        token_adapter, order, starts, len(token_adapter), num_adapters, BLOCK=SORT_BLOCK
    )
    return order, starts


@triton.jit
def tokens_of_tile(order, starts, adapter, tile, BLOCK_T: tl.constexpr):
    """Token indices int64 [BLOCK_T] of a tile of an adapter, and which of them there are."""
    end = tl.load(starts + adapter + 1)
    place = tl.load(starts + adapter) + tile * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = place < end
    return tl.load(order + place, mask=inside, other=0).to(tl.int64), inside


# --- 2. shrink -----------------------------------------------------------------------------------------------


@triton.jit
def lora_shrink_kernel(
    x,
    lora_a,
    order,
    starts,
    parts,
    num_tokens,
    num_slices,
    rank,
    k,
    x_stride,
    slice_stride,
    adapter_stride,
    SPLITS: tl.constexpr,
    K_PER_SPLIT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Program (tile and part of K, slice, adapter): parts [SPLITS, slices, T, rank]."""
    tile, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    part_of, adapter = tl.program_id(1), tl.program_id(2)
    if tl.load(starts + adapter) + tile * BLOCK_T >= tl.load(starts + adapter + 1):
        return
    t, t_inside = tokens_of_tile(order, starts, adapter, tile, BLOCK_T)
    r = tl.arange(0, BLOCK_R)
    r_inside = r < rank
    columns = tl.arange(0, BLOCK_K)
    x_tile = x + t[:, None] * x_stride + columns[None, :]
    matrix = lora_a + part_of * slice_stride + adapter.to(tl.int64) * adapter_stride
    a_tile = matrix + r[:, None] * k + columns[None, :]
    total = tl.zeros([BLOCK_R, BLOCK_T], tl.float32)
    first = split * K_PER_SPLIT
    for start in range(first, tl.minimum(first + K_PER_SPLIT, k), BLOCK_K):
        k_inside = (columns < k - start)[None, :]
        a = tl.load(a_tile + start, mask=r_inside[:, None] & k_inside, other=0.0)
        rows = tl.load(x_tile + start, mask=t_inside[:, None] & k_inside, other=0.0)
        total = tl.dot(a, tl.trans(rows), total, input_precision="ieee")
    row = (split * num_slices + part_of) * num_tokens + t
    place = parts + row[None, :] * rank + r[:, None]
    tl.store(place, total, mask=r_inside[:, None] & t_inside[None, :])


@triton.jit
def add_shrunk_kernel(
    parts, token_adapter, out, num_tokens, num_slices, rank, SPLITS: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Program (token, slice): out [slices, T, rank] = the parts in order; zeros for a token without an adapter."""
    token = tl.program_id(0)
    row = tl.program_id(1) * num_tokens + token
    r = tl.arange(0, BLOCK_R)
    written = tl.where(tl.load(token_adapter + token) >= 0, rank, 0)
    total = tl.zeros([BLOCK_R], tl.float32)
    for split in range(SPLITS):
        total += tl.load(
            parts + (split * num_slices * num_tokens + row) * rank + r, mask=r < written, other=0.0
        )
    tl.store(out + row * rank + r, total, mask=r < rank)


def lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> Tensor:
    num_tokens, k = x.shape
    num_slices, num_adapters, rank, _ = lora_a.shape
    out = torch.empty(num_slices, num_tokens, rank, dtype=torch.float32, device=x.device)
    if not num_tokens:
        return out
    order, starts = sort_by_adapter(token_adapter, num_adapters)
    tile = tile_for(num_tokens, TILES)
    splits = triton.cdiv(k, K_PER_SPLIT)
    parts = torch.empty(splits, *out.shape, dtype=torch.float32, device=x.device)
    block_r = max(16, triton.next_power_of_2(rank))
    grid = (triton.cdiv(num_tokens, tile.block_t) * splits, num_slices, num_adapters)
    lora_shrink_kernel[grid](
        *(x, lora_a, order, starts, parts),
        *(num_tokens, num_slices, rank, k),
        *(x.stride(0), lora_a.stride(0), lora_a.stride(1)),
        SPLITS=splits,
        K_PER_SPLIT=K_PER_SPLIT,
        BLOCK_R=block_r,
        BLOCK_K=BLOCK_K,
        **tile.options,
    )
    add_shrunk_kernel[(num_tokens, num_slices)](
        parts, token_adapter, out, num_tokens, num_slices, rank, SPLITS=splits, BLOCK_R=block_r, num_warps=1
    )
    return out


def unsupported_lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> str | None:
    if lora_a.dtype != x.dtype:
        return f"x is {x.dtype} and lora_a {lora_a.dtype}; both must have one type"
    if lora_a.stride(2) != lora_a.shape[3]:
        return "the rows of a matrix in lora_a must be contiguous"
    return unlike("x", x)


# --- 3. expand -----------------------------------------------------------------------------------------------


@triton.jit
def lora_expand_kernel(
    shrunk,
    table,
    order,
    starts,
    y,
    scaling,
    num_tokens,
    rank,
    num_n,
    y_stride,
    TF32: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Program (tile of tokens and n block, slice, adapter). A row of `table` describes a slice: where its matrices
    [adapters, N_s, rank] lie, N_s, and its first column of y.

    TF32: a 16-bit B is exact in tf32. The fp32 factor is not, so it is cut into its tf32 part and the rest.
    """
    tile, n_block = tl.program_id(0) // num_n, tl.program_id(0) % num_n
    part_of, adapter = tl.program_id(1), tl.program_id(2)
    num_columns, first_column = tl.load(table + 3 * part_of + 1), tl.load(table + 3 * part_of + 2)
    if tl.load(starts + adapter) + tile * BLOCK_T >= tl.load(starts + adapter + 1):
        return
    if n_block * BLOCK_N >= num_columns:
        return
    t, t_inside = tokens_of_tile(order, starts, adapter, tile, BLOCK_T)
    n = n_block * BLOCK_N + tl.arange(0, BLOCK_N)
    n_inside = n < num_columns
    lora_b = tl.load(table + 3 * part_of).to(tl.pointer_type(y.dtype.element_ty))
    b_rows = lora_b + (adapter * num_columns + n)[:, None] * rank
    shrunk_rows = shrunk + (part_of * num_tokens + t)[:, None] * rank
    total = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for first in range(0, rank, BLOCK_R):
        r = first + tl.arange(0, BLOCK_R)[None, :]
        b = tl.load(b_rows + r, mask=n_inside[:, None] & (r < rank), other=0.0).to(tl.float32)
        low = tl.load(shrunk_rows + r, mask=t_inside[:, None] & (r < rank), other=0.0)
        if TF32:
            high = (low.to(tl.int32, bitcast=True) & _TF32_BITS).to(tl.float32, bitcast=True)
            total = tl.dot(b, tl.trans(high), total, input_precision="tf32")
            total = tl.dot(b, tl.trans(low - high), total, input_precision="tf32")
        else:
            total = tl.dot(b, tl.trans(low), total, input_precision="ieee")
    place = y + t[None, :] * y_stride + (first_column + n)[:, None]
    inside = n_inside[:, None] & t_inside[None, :]
    old = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    new = old + tl.load(scaling + adapter) * total
    tl.store(place, new.to(y.dtype.element_ty), mask=inside)


def lora_expand(
    shrunk: Tensor, lora_b: Sequence[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> None:
    num_slices, num_tokens, rank = shrunk.shape
    if not num_tokens:
        return
    num_adapters = lora_b[0].shape[0]
    order, starts = sort_by_adapter(token_adapter, num_adapters)
    tile = tile_for(num_tokens, TILES)
    num_n = triton.cdiv(max(weight.shape[1] for weight in lora_b), BLOCK_N)
    grid = (triton.cdiv(num_tokens, tile.block_t) * num_n, num_slices, num_adapters)
    table = slice_table(tuple((weight.data_ptr(), weight.shape[1]) for weight in lora_b), y.device)
    lora_expand_kernel[grid](
        *(shrunk.contiguous(), table, order, starts, y, scaling),
        *(num_tokens, rank, num_n, y.stride(0)),
        TF32=y.dtype != torch.float32,
        BLOCK_N=BLOCK_N,
        BLOCK_R=min(MAX_BLOCK_R, max(16, triton.next_power_of_2(rank))),
        **tile.options,
    )


@lru_cache(maxsize=4096)
def slice_table(slices: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """int64 [slices, 3] on the device: (address, columns, first column of y) of each slice.

    Adapters keep their place, so this is copied once. A table says nothing that its key does not say, so one of
    matrices that are gone does no harm.
    """
    rows, first_column = [], 0
    for address, columns in slices:
        rows.append((address, columns, first_column))
        first_column += columns
    return torch.tensor(rows, dtype=torch.int64, device=device)


def unsupported_lora_expand(
    shrunk: Tensor, lora_b: Sequence[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> str | None:
    if any(weight.dtype != y.dtype for weight in lora_b):
        return f"y is {y.dtype} and lora_b {[weight.dtype for weight in lora_b]}; all must have one type"
    if not all(weight.is_contiguous() for weight in lora_b):
        return "the matrices of lora_b must be contiguous"
    return unlike("y", y)


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    """q, k and v of Llama-8B."""

    def shrink(num_tokens: int, rank: int) -> Callable[[], object]:
        x = torch.empty(num_tokens, 4096, dtype=torch.bfloat16, device="meta")
        lora_a = torch.empty(3, 64, rank, 4096, dtype=torch.bfloat16, device="meta")
        return lambda: lora_shrink(x, lora_a, torch.empty(num_tokens, dtype=torch.int32, device="meta"))

    def expand(num_tokens: int, rank: int) -> Callable[[], object]:
        shrunk = torch.empty(3, num_tokens, rank, device="meta")
        lora_b = [torch.empty(64, n, rank, dtype=torch.bfloat16, device="meta") for n in (4096, 1024, 1024)]
        y = torch.empty(num_tokens, 6144, dtype=torch.bfloat16, device="meta")
        adapters = torch.empty(num_tokens, dtype=torch.int32, device="meta")
        return lambda: lora_expand(shrunk, lora_b, adapters, y, torch.empty(64, device="meta"))

    return {
        "shrink 64, rank 16": shrink(64, 16),
        "shrink 2048, rank 64": shrink(2048, 64),
        "expand 64, rank 16": expand(64, 16),
        "expand 2048, rank 64": expand(2048, 64),
    }
