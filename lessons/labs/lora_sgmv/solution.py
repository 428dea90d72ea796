"""Lab triton-lora-sgmv: low-rank adapters, many in one batch: shrink and expand for the rows of each adapter.

The seam is lora_shrink and lora_expand of kernels/ops.py, which every linear layer calls beside its own weight.
LoRA: Hu et al. 2021 (2106.09685); SGMV: Punica, Chen et al. 2023 (2310.18547); S-LoRA: Sheng et al. 2023
(2311.03285); vLLM: lora/ops/triton_ops/lora_shrink_op.py, lora_expand_op.py.

    order    3  7 | 0  1  5 | 4           rows sorted by adapter: adapter s has the rows
    starts   0      2     2       5  6    order[starts[s]] .. order[starts[s + 1] - 1], here 2, 0, 3 and 1 rows

    shrink   low[t][r]  = sum over k of x[t][k] * a[s][r][k]                    for r < ranks[s]
    expand   y[t][n]   += scaling[s] * sum over r of low[t][r] * b[s][r][n]     r < ranks[s]

Rows in no list (here 2 and 6) have no adapter: their low and y keep their bits. All slots have room for max_rank;
behind the rank of an adapter a and b hold what an earlier adapter left, also NaN, and low holds anything: read none
of it, and leave low there as it was. Errors up to 1e-6 of the sum of the absolute terms are accepted.

x      fp32 [tokens, depth]                 order    int32 [rows with an adapter], may be empty
low    fp32 [tokens, max_rank]              starts   int32 [adapters + 1]
y      fp32 [tokens, columns]               ranks    int32 [adapters], 1 to max_rank
a      fp32 [adapters, max_rank, depth]     scaling  fp32 [adapters]
b      fp32 [adapters, max_rank, columns]   (vLLM keeps b as [adapters, columns, max_rank])

The functions get torch tensors and write in place. depth, columns and max_rank are any size >= 1, max_rank at most
128. The checks run them in Triton's interpreter.

Mask every load and store that would leave its tensor; a lane that a mask hides has no value unless `other` gives one.
Kernels store each number that a function returns or changes: torch only makes the tensors.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILE = 16
"""Rows of a program; tl.dot needs at least 16."""


@triton.jit
def _rows(order, starts, adapter, tile, TILE: tl.constexpr):
    """The rows of a tile, and which of them there are."""
    place = tl.load(starts + adapter) + tile * TILE + tl.arange(0, TILE)
    inside = place < tl.load(starts + adapter + 1)
    return tl.load(order + place, mask=inside, other=0).to(tl.int64), inside


@triton.jit
def _lora_shrink(
    x, a, order, starts, ranks, low, max_rank, depth,
    TILE: tl.constexpr, RANKS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Do TILE rows of one adapter."""
    adapter, tile = tl.program_id(0), tl.program_id(1)
    # given up to here
    # RANKS: a power of two, at least max_rank and 16
    row, inside = _rows(order, starts, adapter, tile, TILE)
    if tl.load(starts + adapter) + tile * TILE < tl.load(starts + adapter + 1):
        r, k = tl.arange(0, RANKS), tl.arange(0, BLOCK_K)
        used = r < tl.load(ranks + adapter)
        a_rows = a + (adapter.to(tl.int64) * max_rank + r[:, None]) * depth
        x_rows = x + row[:, None] * depth
        total = tl.zeros([TILE, RANKS], tl.float32)
        for start in range(0, depth, BLOCK_K):
            within = (start + k < depth)[None, :]
            of_a = tl.load(a_rows + start + k[None, :], mask=used[:, None] & within, other=0.0)
            of_x = tl.load(x_rows + start + k[None, :], mask=inside[:, None] & within, other=0.0)
            total = tl.dot(of_x, tl.trans(of_a), total, input_precision="ieee")
        at = low + row[:, None] * max_rank + r[None, :]
        tl.store(at, total, mask=inside[:, None] & used[None, :])


@triton.jit
def _lora_expand(
    low, b, order, starts, ranks, scaling, y, max_rank, columns,
    TILE: tl.constexpr, RANKS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_N columns of TILE rows of one adapter."""
    adapter, tile = tl.program_id(0), tl.program_id(1)
    # given up to here
    # RANKS: a power of two, at least max_rank and 16
    row, inside = _rows(order, starts, adapter, tile, TILE)
    if tl.load(starts + adapter) + tile * TILE < tl.load(starts + adapter + 1):
        r, n = tl.arange(0, RANKS), tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
        used, within = r < tl.load(ranks + adapter), n < columns
        low_at = low + row[:, None] * max_rank + r[None, :]
        b_at = b + (adapter.to(tl.int64) * max_rank + r[:, None]) * columns + n[None, :]
        factors = tl.load(low_at, mask=inside[:, None] & used[None, :], other=0.0)
        of_b = tl.load(b_at, mask=used[:, None] & within[None, :], other=0.0)
        added = tl.load(scaling + adapter) * tl.dot(factors, of_b, input_precision="ieee")
        at = y + row[:, None] * columns + n[None, :]
        mask = inside[:, None] & within[None, :]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + added, mask=mask)


def lora_shrink(x: Tensor, a: Tensor, order: Tensor, starts: Tensor, ranks: Tensor, low: Tensor) -> None:
    adapters, max_rank, depth = a.shape
    if len(order):
        _lora_shrink[(adapters, triton.cdiv(len(order), TILE))](
            x, a, order, starts, ranks, low, max_rank, depth,
            TILE=TILE, RANKS=max(16, triton.next_power_of_2(max_rank)), BLOCK_K=64,
        )  # fmt: skip


def lora_expand(
    low: Tensor, b: Tensor, order: Tensor, starts: Tensor, ranks: Tensor, scaling: Tensor, y: Tensor
) -> None:
    adapters, max_rank, columns = b.shape
    if len(order):
        block = min(64, max(16, triton.next_power_of_2(columns)))
        _lora_expand[(adapters, triton.cdiv(len(order), TILE), triton.cdiv(columns, block))](
            low, b, order, starts, ranks, scaling, y, max_rank, columns,
            TILE=TILE, RANKS=max(16, triton.next_power_of_2(max_rank)), BLOCK_N=block,
        )  # fmt: skip
