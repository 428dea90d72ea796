"""Decode: one query per row, its keys cut into splits that are attended side by side, then put together.

With one program for each (row, kv head) a long row at a small batch leaves most of the GPU idle: Llama-8B at batch 1
has 8 kv heads for 132 SMs. So the keys are split as well (Flash-Decoding):

    keys of a row     |  split 0  |  split 1  |  split 2 |        each leaves m, l and acc, in fp32
    program (row, kv head, z) takes splits z, z + Z, ...

and a second kernel, one program for each (row, head), adds them up, relative to the highest m of all:

    w_i = 2^(m_i - max m)       out = sum(w_i acc_i) / sum(w_i l_i)

The length of a split is 256, and grows when a row would need more than 64. It follows from the row's own length, never
from how many rows there are: neighbours cannot change a row's bits. The number of programs Z can, since it only says
who computes a split.

Rows with another number of queries than one are skipped (`unified_attention.py` has them). The query heads that share a
kv head are the rows of one tile, padded to the 16 rows that tensor cores take.

Sources: Flash-Decoding (Dao, Haziza, Massa, Sizov 2023); PagedAttention V2 of vLLM, csrc/attention.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.triton_ops.paged_tile import LOG2_E, TYPES, attend_tile, nothing_seen, strides, types_of

SPLIT = 256
MAX_SPLITS = 64
PROGRAMS = 2048
"""Aimed at in all: enough to fill 132 SMs several times, so that rows of different lengths even out."""


@triton.jit
def decode_split_kernel(
    query,
    kv,
    kv_scale,
    partial_highest,
    partial_total,
    partial_acc,
    query_start_loc,
    seq_lens,
    block_table,
    num_heads,
    max_splits,
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
    GROUP_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    token = tl.load(query_start_loc + row).to(tl.int64)
    if tl.load(query_start_loc + row + 1) - token != 1:
        return
    seq_len = tl.load(seq_lens + row)
    lowest, first_tile, split_len = split_of(seq_len, WINDOW, TILE, SPLIT, MAX_SPLITS)

    member = tl.arange(0, GROUP_PADDED)
    dim = tl.arange(0, DIM_PADDED)
    head = kv_head * GROUP + member
    inside = (member < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    offsets = token * query_token_stride + (head * query_head_stride)[:, None] + dim[None, :]
    q = tl.load(query + offsets, mask=inside, other=0.0).to(COMPUTE)
    position = tl.full([GROUP_PADDED], 0, tl.int32) + seq_len - 1

    keys = kv + kv_head * kv_head_stride
    blocks = block_table + row * table_stride
    key_scales = kv_scale
    if QUANTISED == "int8":
        key_scales += kv_head * scale_head_stride
    if QUANTISED == "fp8":
        score_scale *= tl.load(kv_scale)

    for split in range(tl.program_id(2), tl.cdiv(seq_len - first_tile, split_len), tl.num_programs(2)):
        highest, total, acc = nothing_seen(GROUP_PADDED, DIM_PADDED)
        start = first_tile + split * split_len
        for position_of_tile in range(start, tl.minimum(start + split_len, seq_len), TILE):
            highest, total, acc = attend_tile(
                q, position, highest, total, acc, position_of_tile, lowest, seq_len, keys, key_scales, blocks,
                score_scale, kv_block_stride, kv_part_stride, scale_block_stride, scale_part_stride,
                True, WINDOW, QUANTISED, BLOCK_SIZE, HEAD_DIM, DIM_PADDED, TILE,
            )  # fmt: skip
        place = (row * num_heads + head) * max_splits + split
        tl.store(partial_highest + place, highest, mask=member < GROUP)
        tl.store(partial_total + place, total, mask=member < GROUP)
        tl.store(partial_acc + place[:, None] * HEAD_DIM + dim[None, :], acc, mask=inside)


@triton.jit
def decode_reduce_kernel(
    kv_scale,
    partial_highest,
    partial_total,
    partial_acc,
    out,
    query_start_loc,
    seq_lens,
    num_heads,
    max_splits,
    WINDOW: tl.constexpr,
    QUANTISED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    token = tl.load(query_start_loc + row).to(tl.int64)
    if tl.load(query_start_loc + row + 1) - token != 1:
        return
    seq_len = tl.load(seq_lens + row)
    _, first_tile, split_len = split_of(seq_len, WINDOW, TILE, SPLIT, MAX_SPLITS)

    # Always MAX_SPLITS terms, absent ones with weight 0: the order of a sum must not depend on its neighbours.
    split = tl.arange(0, MAX_SPLITS)
    present = split < tl.cdiv(seq_len - first_tile, split_len)
    place = (row * num_heads + head) * max_splits + split
    highest = tl.load(partial_highest + place, mask=present, other=float("-inf"))
    top = tl.max(highest, axis=0)
    weight = tl.exp2(highest - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weight * tl.load(partial_total + place, mask=present, other=0.0), axis=0)

    dim = tl.arange(0, DIM_PADDED)
    inside = present[:, None] & (dim < HEAD_DIM)[None, :]
    acc = tl.load(partial_acc + place[:, None] * HEAD_DIM + dim[None, :], mask=inside, other=0.0)
    result = tl.sum(weight[:, None] * acc, axis=0) / total
    if QUANTISED == "fp8":
        result *= tl.load(kv_scale + 1)
    target = out + (token * num_heads + head) * HEAD_DIM + dim
    tl.store(target, result.to(out.dtype.element_ty), mask=dim < HEAD_DIM)


@triton.jit
def split_of(
    seq_len, WINDOW: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr
):
    """(first visible position, start of its tile, where split 0 begins, length of a split), from seq_len alone."""
    lowest = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0
    first_tile = lowest // TILE * TILE
    split_len = SPLIT * tl.maximum(tl.cdiv(seq_len - first_tile, SPLIT * MAX_SPLITS), 1)
    return lowest, first_tile, split_len


def split_kv_decode(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    kv_scale: Tensor | None = None,
) -> None:
    """Fill the tokens of `out` [T, heads, head_dim] that are the only query of their row."""
    _, heads, head_dim = query.shape
    kv_heads, block_size = kv.shape[2:4]
    num_rows, group = batch.seq_lens.shape[0], heads // kv_heads
    quantised, compute = types_of(query, kv)
    config = tile_config(compute, head_dim)
    max_splits = most_splits(batch.block_table.shape[1] * block_size, sliding_window, config["TILE"])
    scratch = torch.empty(num_rows, heads, max_splits, head_dim + 2, dtype=torch.float32, device=query.device)
    numbers = num_rows * heads * max_splits
    highest, total, acc = scratch.view(-1).split([numbers, numbers, numbers * head_dim])
    shape = {
        "WINDOW": sliding_window or 0,
        "QUANTISED": quantised,
        "HEAD_DIM": head_dim,
        "DIM_PADDED": max(16, triton.next_power_of_2(head_dim)),
        "TILE": config.pop("TILE"),
        "SPLIT": SPLIT,
        "MAX_SPLITS": MAX_SPLITS,
    }
    programs = min(max_splits, triton.cdiv(PROGRAMS, num_rows * kv_heads))
    rows = (batch.query_start_loc, batch.seq_lens)
    decode_split_kernel[(num_rows, kv_heads, programs)](
        *(query, kv, kv_scale, highest, total, acc, *rows, batch.block_table),
        *(heads, max_splits, scale * LOG2_E),
        *strides(query, kv, kv_scale, batch),
        COMPUTE=TYPES[compute],
        GROUP=group,
        BLOCK_SIZE=block_size,
        GROUP_PADDED=max(16, triton.next_power_of_2(group)),
        **shape,
        **config,
    )
    decode_reduce_kernel[(num_rows, heads)](
        kv_scale, highest, total, acc, out, *rows, heads, max_splits, **shape
    )


def most_splits(max_seq_len: int, sliding_window: int | None, tile: int) -> int:
    """Largest number of splits of a row of up to max_seq_len tokens."""
    visible = max_seq_len if sliding_window is None else min(max_seq_len, sliding_window + tile)
    return max(1, min(MAX_SPLITS, triton.cdiv(visible, SPLIT)))


def tile_config(compute: torch.dtype, head_dim: int) -> dict[str, int]:
    """Tile and pipeline by dtype and head_dim only.

    Decode waits for memory. A tile of 16 KB of keys and as much of values is fetched while the one before is attended,
    and 2 to 4 programs share an SM: some 100 KB under way, more than latency times bandwidth asks for.
    """
    if compute == torch.float32:
        return {"TILE": 16, "num_warps": 4, "num_stages": 1}
    tile = 8192 // triton.next_power_of_2(head_dim)
    return {"TILE": min(tile, 128), "num_warps": 4, "num_stages": 3}
