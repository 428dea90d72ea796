"""A step without scheduler and runner: paged batches put together by hand for a model or a backend."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from engine.attention.backend import AttentionMetadata, AttentionShape, get_backend, kv_cache_shape
from engine.attention.forward_context import ForwardContext, set_forward_context
from engine.config import ModelConfig

STALE = 2**20
"""Fills block-table columns past a row's end: reading it would fail loudly."""


def make_metadata(
    rows: list[tuple[list[int], int, int]], block_size: int, *, padding: int = 0
) -> AttentionMetadata:
    """rows: (block ids, start, num_tokens), decode rows first; `padding` tokens of slot -1 at the end."""
    width = max(len(blocks) for blocks, _, _ in rows) + 1
    query_start_loc, slots = [0], []
    for blocks, start, num_tokens in rows:
        query_start_loc.append(query_start_loc[-1] + num_tokens)
        slots += [
            blocks[p // block_size] * block_size + p % block_size for p in range(start, start + num_tokens)
        ]
    seq_lens = [start + num_tokens for _, start, num_tokens in rows]
    return AttentionMetadata(
        query_start_loc=torch.tensor(query_start_loc, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=torch.tensor(
            [blocks + [STALE] * (width - len(blocks)) for blocks, _, _ in rows], dtype=torch.int32
        ),
        slot_mapping=torch.tensor(slots + [-1] * padding, dtype=torch.int64),
        num_decode_rows=sum(num_tokens == 1 for _, _, num_tokens in rows),
        max_query_len=max(num_tokens for _, _, num_tokens in rows),
        max_seq_len=max(seq_lens),
        query_start_loc_cpu=query_start_loc,
        seq_lens_cpu=seq_lens,
    )


@dataclass
class Sequence:
    """Tokens of one request, how far they are computed, and its blocks."""

    tokens: list[int]
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)


class PagedModel:
    """Runs a model step by step over a paged cache with scrambled blocks."""

    def __init__(
        self,
        model: nn.Module,
        config: ModelConfig,
        backend: str,
        *,
        num_blocks: int = 128,
        block_size: int = 4,
    ) -> None:
        self.model = model
        self.block_size = block_size
        dtype = getattr(torch, config.dtype)
        geometry = (config.num_attention_heads, config.num_key_value_heads, config.head_dim, block_size)
        self.backend = get_backend(backend, "cpu", dtype, AttentionShape(*geometry, dtype))
        shape = kv_cache_shape(
            num_blocks, config.num_hidden_layers, config.num_key_value_heads, block_size, config.head_dim
        )
        self.kv_cache = torch.zeros(shape, dtype=dtype)
        self.free = list(range(1, num_blocks))
        random.Random(0).shuffle(self.free)

    @torch.inference_mode()
    def step(self, work: list[tuple[Sequence, int]], *, padding: int = 0) -> list[Tensor]:
        """Compute `num_tokens` more tokens of each sequence; the logits [num_tokens, vocab] of each, as given."""
        order = sorted(range(len(work)), key=lambda index: work[index][1] != 1)
        rows, ids, positions = [], [], []
        for sequence, num_tokens in (work[index] for index in order):
            start, end = sequence.num_computed, sequence.num_computed + num_tokens
            while len(sequence.blocks) * self.block_size < end:
                sequence.blocks.append(self.free.pop())
            rows.append((sequence.blocks, start, num_tokens))
            ids += sequence.tokens[start:end]
            positions += range(start, end)
            sequence.num_computed = end
        metadata = make_metadata(rows, self.block_size, padding=padding)
        self.backend.build(metadata)
        with set_forward_context(ForwardContext(metadata, self.backend, self.kv_cache)):
            hidden = self.model(torch.tensor(ids + [0] * padding), torch.tensor(positions + [0] * padding))
        logits = self.model.compute_logits(hidden[: len(ids)]).split([row[2] for row in rows])
        return [logits[order.index(index)] for index in range(len(work))]
