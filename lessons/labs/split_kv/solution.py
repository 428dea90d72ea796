"""Solution of lab triton-split-kv. The docstrings of the stub state the contract."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _decode_splits(
    query, kv, table, seq_lens, peak, mass, acc, max_blocks, window, splits, split_size, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column, slot = tl.arange(0, DIM), tl.arange(0, BLOCK)
    place = (row * HEADS + head).to(tl.int64) * splits + split
    q = tl.load(query + (row * HEADS + head).to(tl.int64) * DIM + column) * scale
    length = tl.load(seq_lens + row)
    begin = tl.maximum(split * split_size, tl.where(window > 0, length - window, 0))
    end = tl.minimum((split + 1) * split_size, length)
    highest, total, mixed = -float("inf"), 0.0, tl.zeros([DIM], tl.float32)
    for number in range(begin // BLOCK, (end + BLOCK - 1) // BLOCK):
        block = tl.load(table + row * max_blocks + number).to(tl.int64)
        page = kv + (block * 2 * KV_HEADS + head // (HEADS // KV_HEADS)) * BLOCK * DIM
        inner = slot[:, None] * DIM + column[None, :]
        position = number * BLOCK + slot
        seen = (position >= begin) & (position < end)
        keys = tl.load(page + inner, mask=seen[:, None], other=0.0)
        values = tl.load(page + KV_HEADS * BLOCK * DIM + inner, mask=seen[:, None], other=0.0)
        scores = tl.where(seen, tl.sum(keys * q[None, :], axis=1), -float("inf"))
        larger = tl.maximum(highest, tl.max(scores, axis=0))
        shrink, weights = tl.exp(highest - larger), tl.exp(scores - larger)
        highest = larger
        total = total * shrink + tl.sum(weights, axis=0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * values, axis=0)
    tl.store(peak + place, highest)
    tl.store(mass + place, total)
    tl.store(acc + place * DIM + column, mixed)


@triton.jit
def _merge_splits(peak, mass, acc, out, splits, HEADS: tl.constexpr, DIM: tl.constexpr):
    row, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, DIM)
    head_of_row = (row * HEADS + head).to(tl.int64)
    place = head_of_row * splits
    highest, total, mixed = -float("inf"), 0.0, tl.zeros([DIM], tl.float32)
    for split in range(splits):
        highest = tl.maximum(highest, tl.load(peak + place + split))
    for split in range(splits):
        own = tl.load(peak + place + split)
        weight = tl.exp(own - highest)
        total += weight * tl.load(mass + place + split)
        at = acc + (place + split) * DIM + column
        mixed += weight * tl.load(at, mask=column < tl.where(own > -float("inf"), DIM, 0), other=0.0)
    tl.store(out + head_of_row * DIM + column, mixed / total)


def decode_splits(
    query: Tensor, kv: Tensor, table: Tensor, seq_lens: Tensor,
    window: int, splits: int, split_size: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, heads, dim = query.shape
    _, _, kv_heads, block_size, _ = kv.shape
    peak, mass = (torch.empty(rows, heads, splits, device=query.device) for _ in range(2))
    acc = torch.empty(rows, heads, splits, dim, device=query.device)
    _decode_splits[(rows, heads, splits)](
        query, kv, table, seq_lens, peak, mass, acc, table.shape[1], window, splits, split_size, scale,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, BLOCK=block_size,
    )  # fmt: skip
    return peak, mass, acc


def merge_splits(peak: Tensor, mass: Tensor, acc: Tensor) -> Tensor:
    rows, heads, splits, dim = acc.shape
    out = torch.empty(rows, heads, dim, device=acc.device)
    _merge_splits[(rows, heads)](peak, mass, acc, out, splits, HEADS=heads, DIM=dim)
    return out
