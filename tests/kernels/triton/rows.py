"""Rows for paged attention, small enough to think about: 4 query heads on 2 kv heads, blocks of 16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.reference.attention import paged_attention

BLOCK_SIZE = 16


Inputs = tuple[Tensor, Tensor, AttentionBatch]


def inputs_of(
    query_lens: list[int], seq_lens: list[int], *, head_dim: int = 32, max_query_len: int | None = None
) -> Inputs:
    """Return query, kv and batch."""
    generator = torch.Generator().manual_seed(sum(seq_lens))
    width = -(-max(seq_lens) // BLOCK_SIZE)
    num_blocks = 1 + width * len(seq_lens)
    kv = torch.randn(num_blocks, 2, 2, BLOCK_SIZE, head_dim, generator=generator)
    query = torch.randn(sum(query_lens), 4, head_dim, generator=generator)
    table = 1 + torch.randperm(num_blocks - 1, generator=generator).view(len(seq_lens), width)
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    batch = AttentionBatch(starts.int(), torch.tensor(seq_lens).int(), table.int(), max_query_len)
    return query, kv, batch


def expected(inputs: Inputs, **options: Any) -> Tensor:
    """Return the reference's result in float64."""
    query, kv, batch = inputs
    return paged_attention(query.double(), kv.double(), batch, **options)
