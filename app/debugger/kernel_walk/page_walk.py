"""Compute paged attention of one query page by page and keep every intermediate number.

    block table   [ 7 | 2 | 9 ]                page 1: its block, its positions
                        |
    page 1  -->  block 2 of the cache  -->  s = scale q . k      a score per token and head
                                            m' = max(m, max s)   running maximum
                                            r  = exp(m - m')     what the sums so far are worth now
                                            l' = l r + sum exp(s - m')
                                            a' = a r + sum exp(s - m') v
    after the last page                     out = a / l

This is the online softmax (Milakov and Gimelshein 2018) by which FlashAttention (Dao 2022) and PagedAttention (Kwon et
al. 2023) read keys and values once, in any order, without a row of scores as long as the sequence. The kernels in
`kernels/triton_ops`, `kernels/cuda` and `kernels/cpu` do the same with several pages at once and keep nothing; the
definition they are all held to is `kernels/reference/attention.py`, and so is this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.ops import dequantise_pages, wide


class Page(NamedTuple):
    """The part of one block-table entry that the query attends to."""

    page: int
    """Column in the block table."""
    block_id: int
    first: int
    """Position of its first visible token."""
    end: int
    """Position after its last visible token."""

    @property
    def num_tokens(self) -> int:
        return self.end - self.first


@dataclass(frozen=True)
class PageVisit:
    """The effect of one page on the running softmax. Tensors are fp32, one entry per query head."""

    page: Page
    scores: Tensor
    """[heads, tokens]: scale * q . k."""
    score_max: Tensor
    m: Tensor
    """Running maximum, including this page."""
    rescale: Tensor
    """exp(m before - m): the factor by which earlier sums shrink; 0 on the first page."""
    added: Tensor
    """sum of exp(score - m) over this page."""
    mass: Tensor
    """Running sum, l in the papers: mass before * rescale + added."""
    acc: Tensor
    """[heads, head_dim]: running sum of exp(score - m) * v."""
    bytes_read: int
    """Keys and values of the tokens seen, all kv heads of this layer, with the scales of a quantised cache."""


@dataclass(frozen=True)
class PageWalk:
    """All pages in the order of the block table, and the output."""

    visits: list[PageVisit]
    output: Tensor
    """[heads, head_dim]: the result of `paged_attention` for this query."""

    def shares(self) -> Tensor:
        """[pages, heads]: each page's share of the softmax mass; a column sums to 1."""
        last = self.visits[-1]
        masses = [visit.added * torch.exp(visit.m - last.m) for visit in self.visits]
        return torch.stack(masses) / last.mass

    @property
    def bytes_read(self) -> int:
        return sum(visit.bytes_read for visit in self.visits)


def pages_seen(
    block_table: Sequence[int], seq_len: int, block_size: int, sliding_window: int | None = None
) -> Iterator[Page]:
    """The pages that the query at position seq_len - 1 reads: those not behind its sliding window."""
    oldest = 0 if sliding_window is None else max(0, seq_len - sliding_window)
    for page in range(oldest // block_size, -(-seq_len // block_size)):
        begin = page * block_size
        yield Page(page, block_table[page], max(begin, oldest), min(begin + block_size, seq_len))


def walk_pages(
    query: Tensor,
    kv: Tensor,
    block_table: Sequence[int],
    seq_len: int,
    *,
    scale: float,
    sliding_window: int | None = None,
    kv_scale: Tensor | None = None,
) -> PageWalk:
    """Attention of the query at position seq_len - 1 over the request's tokens, including itself.

    query [heads, head_dim]; kv: one layer of the cache, [num_blocks, 2, kv_heads, block_size, head_dim]; kv_scale: of a
    quantised cache, see `engine/quant/kv_cache.py`.
    """
    query = wide(query)
    heads, head_dim = query.shape
    m = query.new_full((heads,), float("-inf"))
    mass = query.new_zeros(heads)
    acc = query.new_zeros(heads, head_dim)
    visits = []
    for page in pages_seen(block_table, seq_len, kv.shape[3], sliding_window):
        key, value = _read(kv, kv_scale, page, heads)
        scores = torch.einsum("hd,hkd->hk", query, key) * scale
        score_max = scores.amax(dim=-1)
        new_m = torch.maximum(m, score_max)
        rescale = torch.exp(m - new_m)
        weights = torch.exp(scores - new_m[:, None])
        added = weights.sum(dim=-1)
        mass = mass * rescale + added
        acc = acc * rescale[:, None] + torch.einsum("hk,hkd->hd", weights, value)
        m = new_m
        visits.append(
            PageVisit(page, scores, score_max, m, rescale, added, mass, acc, _bytes_read(kv, kv_scale, page))
        )
    return PageWalk(visits, acc / mass[:, None])


def _read(kv: Tensor, kv_scale: Tensor | None, page: Page, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a page's visible tokens, [heads, tokens, head_dim]: query heads share a kv head (GQA)."""
    block_size = kv.shape[3]
    ids = torch.tensor([page.block_id])
    pair = wide(dequantise_pages(kv[ids], kv_scale, ids))[0]
    begin = page.page * block_size
    pair = pair[:, :, page.first - begin : page.end - begin]
    key, value = pair.repeat_interleave(heads // kv.shape[2], dim=1)
    return key, value


def _bytes_read(kv: Tensor, kv_scale: Tensor | None, page: Page) -> int:
    _, pair, kv_heads, _, head_dim = kv.shape
    per_token = pair * kv_heads * head_dim * kv.itemsize
    if kv.dtype == torch.int8 and kv_scale is not None:
        per_token += pair * kv_heads * kv_scale.itemsize
    return page.num_tokens * per_token
