"""Rows for paged attention, small enough to think about: 4 query heads on 2 kv heads, blocks of 16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.reference.attention import paged_attention

BLOCK_SIZE = 16


def batch(query_lens: list[int], seq_lens: list[int], head_dim: int = 32) -> tuple[Tensor, ...]:
    """query, kv, query_start_loc, seq_lens, block_table."""
    generator = torch.Generator().manual_seed(sum(seq_lens))
    width = -(-max(seq_lens) // BLOCK_SIZE)
    num_blocks = 1 + width * len(seq_lens)
    kv = torch.randn(num_blocks, 2, 2, BLOCK_SIZE, head_dim, generator=generator)
    query = torch.randn(sum(query_lens), 4, head_dim, generator=generator)
    table = 1 + torch.randperm(num_blocks - 1, generator=generator).view(len(seq_lens), width)
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    return query, kv, starts.int(), torch.tensor(seq_lens).int(), table.int()


def expected(inputs: tuple[Tensor, ...], **options: Any) -> Tensor:
    """The reference in float64."""
    query, kv, *where = inputs
    return paged_attention(query.double(), kv.double(), *where, **options)
