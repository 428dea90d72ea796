"""Attention of rows with several queries, whole prompts and chunks alike: one kernel, no padding between rows.

A program owns BLOCK_Q successive queries of one row and one kv head. The GROUP query heads that share this kv head
are packed with the queries into one tile, so that every key is fetched once for all of them:

    tile row   0       1       2       3       4       5    ...        GROUP = 2
    query      q0      q0      q1      q1      q2      q2
    head       h0      h1      h0      h1      h0      h1

It walks over the row's keys, tile by tile (`paged_tile.py`), up to its own last query:

    keys      0 . . . . . . . lowest . . . . . . first . . last          first, last: positions of its queries
              |-- not visited --|-- all visible --|-- masked --|         lowest: 0, or what a sliding window leaves

Which row a program belongs to it finds itself by a binary search, so the grid needs no figures from the device:
row r starts at block query_start_loc[r] // BLOCK_Q + r, which leaves it enough blocks wherever it starts.

Blocks of queries are counted from the row's own first query, and tiles of keys from position 0: what a program
computes does not depend on the other rows. Rows with a single query are left to `split_kv_decode.py`.

On Hopper the products are wgmma, and where a tile of keys lies in one page (`cache_rows`) TMA fetches it. That path
compiles and agrees in the interpreter, and has not yet run on a GPU.

Sources: FlashAttention-2 (Dao 2023); vLLM v1/attention/ops/triton_unified_attention.py (packing, search).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention_batch import AttentionBatch
from kernels.triton_ops.paged_tile import LOG2_E, TYPES, attend_tile, nothing_seen, strides, types_of


@triton.jit
def find_row(query_start_loc, block, num_rows, BLOCK_Q: tl.constexpr):
    """The last row whose first block is not behind `block`."""
    low = 0
    high = num_rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_start_loc + middle) // BLOCK_Q + middle <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def locate(query_start_loc, seq_lens, num_rows, BLOCK_Q: tl.constexpr):
    """(row of this program, its first token, its number of queries, tokens before them, this program's first query)."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the last queries see the most keys: start them first
    row = find_row(query_start_loc, block, num_rows, BLOCK_Q)
    query_start = tl.load(query_start_loc + row)
    query_len = tl.load(query_start_loc + row + 1) - query_start
    context = tl.load(seq_lens + row) - query_len
    return row, query_start, query_len, context, (block - query_start // BLOCK_Q - row) * BLOCK_Q


@triton.jit
def unified_attention_kernel(
    query,
    kv,
    rows,
    kv_scale,
    out,
    query_start_loc,
    seq_lens,
    block_table,
    num_rows,
    num_heads,
    score_scale,
    query_token_stride,
    query_head_stride,
    kv_block_stride,
    kv_part_stride,
    kv_head_stride,
    scale_block_stride,
    scale_part_stride,
    scale_head_stride,
    table_stride,
    WINDOW: tl.constexpr,
    QUANTISED: tl.constexpr,
    COMPUTE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
):
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(1)
    row, query_start, query_len, context, first_query = locate(query_start_loc, seq_lens, num_rows, BLOCK_Q)
    if (query_len < 2) | (first_query >= query_len):
        return
    tile_row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, DIM_PADDED)
    query_index = first_query + tile_row // GROUP
    token = (query_start + query_index).to(tl.int64)
    head = kv_head * GROUP + tile_row % GROUP
    real = (tile_row < BLOCK_Q * GROUP) & (query_index < query_len)
    inside = real[:, None] & (dim < HEAD_DIM)[None, :]
    offsets = (token * query_token_stride + head * query_head_stride)[:, None] + dim[None, :]
    q = tl.load(query + offsets, mask=inside, other=0.0).to(COMPUTE)

    position = context + query_index
    first = context + first_query
    end = context + tl.minimum(first_query + BLOCK_Q, query_len)
    lowest = tl.maximum(first - WINDOW + 1, 0) if WINDOW > 0 else 0
    start = lowest // TILE * TILE
    masked_from = start if WINDOW > 0 else (first + 1) // TILE * TILE

    keys = kv + kv_head * kv_head_stride if rows is None else kv_head * kv_head_stride
    blocks = block_table + row.to(tl.int64) * table_stride
    key_scales = kv_scale
    if QUANTISED == "int8":
        key_scales += kv_head * scale_head_stride
    if QUANTISED == "fp8":
        score_scale *= tl.load(kv_scale)

    highest, total, acc = nothing_seen(BLOCK_M, DIM_PADDED)
    for position_of_tile in range(start, masked_from, TILE):
        highest, total, acc = attend_tile(
            q, position, highest, total, acc, position_of_tile, lowest, end, keys, key_scales, blocks,
            score_scale, kv_block_stride, kv_part_stride, scale_block_stride, scale_part_stride,
            False, WINDOW, QUANTISED, BLOCK_SIZE, HEAD_DIM, DIM_PADDED, TILE, rows,
        )  # fmt: skip
    for position_of_tile in range(masked_from, end, TILE):
        highest, total, acc = attend_tile(
            q, position, highest, total, acc, position_of_tile, lowest, end, keys, key_scales, blocks,
            score_scale, kv_block_stride, kv_part_stride, scale_block_stride, scale_part_stride,
            True, WINDOW, QUANTISED, BLOCK_SIZE, HEAD_DIM, DIM_PADDED, TILE, rows,
        )  # fmt: skip

    result = acc / total[:, None]
    if QUANTISED == "fp8":
        result *= tl.load(kv_scale + 1)
    target = out + ((token * num_heads + head) * HEAD_DIM)[:, None] + dim[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=inside)


def unified_attention(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    kv_scale: Tensor | None = None,
) -> None:
    """Fill the tokens of `out` [T, heads, head_dim] that belong to rows with two or more queries."""
    tokens, heads, head_dim = query.shape
    kv_heads, block_size = kv.shape[2:4]
    group, num_rows = heads // kv_heads, batch.seq_lens.shape[0]
    quantised, compute = types_of(query, kv)
    config = tile_config(compute, quantised, head_dim, group)
    grid = (tokens // (config["BLOCK_M"] // group) + num_rows, kv_heads)
    unified_attention_kernel[grid](
        *(
            query,
            kv,
            cache_rows(query, kv, config),
            kv_scale,
            out,
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_table,
        ),
        *(num_rows, heads, scale * LOG2_E),
        *strides(query, kv, kv_scale, batch),
        WINDOW=sliding_window or 0,
        QUANTISED=quantised,
        COMPUTE=TYPES[compute],
        GROUP=group,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        DIM_PADDED=max(16, triton.next_power_of_2(head_dim)),
        **config,
    )


def cache_rows(query: Tensor, kv: Tensor, config: dict[str, int]) -> TensorDescriptor | None:
    """Return a descriptor of the cache as rows of head_dim values if Hopper's TMA can fetch its tiles, else None.

    It can where a tile lies in one page (pages of 64 tokens or more for bf16), and nothing is widened or padded.
    """
    block_size, head_dim = kv.shape[3:]
    is_padded = head_dim != triton.next_power_of_2(head_dim) or head_dim < 16
    if not has_tma(kv) or kv.dtype != query.dtype or block_size % config["TILE"] or is_padded:
        return None
    num_rows = ((kv.shape[0] - 1) * kv.stride(0) + kv.stride(1) * kv.shape[1]) // head_dim
    return TensorDescriptor(kv, [num_rows, head_dim], [head_dim, 1], [config["TILE"], head_dim])


def has_tma(kv: Tensor) -> bool:
    """Whether the device copies tiles by descriptor: compute capability 9.0 and later."""
    return kv.is_cuda and torch.cuda.get_device_capability(kv.device) >= (9, 0)


def tile_config(compute: torch.dtype, quantised: str, head_dim: int, group: int) -> dict[str, int]:
    """Tile sizes by dtypes and head_dim only: a row must not get other tiles, and other bits, in another batch.

    16-bit: 128 x 64 scores keep the tensor cores busy, and the accumulator (128 x 128 fp32 over 8 warps: 64 registers
    of a thread) fits. An int8 cache needs registers for the values it scales, a larger head_dim for the accumulator:
    both get a smaller tile. fp32 is multiplied outside of the tensor cores, for exactness: small tiles, less to unroll.
    """
    if compute == torch.float32:
        # Told of no limit, ptxas spills a few bytes for one more program on an SM.
        config = {"BLOCK_M": 16, "TILE": 32, "num_warps": 8, "num_stages": 1, "maxnreg": 128}
    elif head_dim > 128 or quantised == "int8":
        config = {"BLOCK_M": 64, "TILE": 32, "num_warps": 8, "num_stages": 2}
    else:
        config = {"BLOCK_M": 128, "TILE": 64, "num_warps": 8, "num_stages": 3}
    return {**config, "BLOCK_M": max(config["BLOCK_M"], triton.next_power_of_2(group))}
