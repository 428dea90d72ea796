"""The learner's attention as an attention backend. Keys and values are written by our kernel.

Rows with few queries (a decoded token and its drafts) go to the kernel of the lab cpp-paged-decode if there is one, all
others to `paged_attention` of lesson 08. Our kernel takes the place of a missing piece.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata, AttentionShape
from kernels import ops
from lessons.mine.errors import PieceError, ask
from lessons.mine.workspace import current


FEW = 8
"""Queries of a row that each become a row of the decode kernel, which sees the tokens up to its own."""


class MineAttention:
    """Calls the learner's pieces once per layer. They know no sliding window: such layers use our kernel."""

    name = "mine"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        pieces = current()
        piece = pieces["attention"]
        self._says, self._attend, self._decode = piece.says, piece.item, pieces["decode"].item
        self._table = torch.empty(0, 0, dtype=torch.int64)
        self._block_size = 0

    @classmethod
    def unsupported(cls, shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why a model of this shape cannot be served; None if it can."""
        return (
            None if dtype == shape.query_dtype else "your attention reads a cache in the type of the queries"
        )

    def build(self, metadata: AttentionMetadata) -> None:
        """Forget the table of the last step."""
        self._block_size = 0

    def write(self, key: Tensor, value: Tensor, kv: Tensor, metadata: AttentionMetadata) -> None:
        ops.reshape_and_cache(key, value, kv, metadata.slot_mapping)

    def attend(
        self,
        query: Tensor,
        kv: Tensor,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        if sliding_window is not None:
            return ops.paged_attention(query, kv, metadata, scale=scale, sliding_window=sliding_window)
        if self._block_size != kv.shape[3]:
            self._block_size = kv.shape[3]
            self._table = visible_table(metadata, self._block_size)
        starts, rows = metadata.query_start_loc_cpu, range(len(metadata.seq_lens_cpu))
        few: list[int] = []
        if self._decode is not None and self._decode.takes(query, kv):
            few = [row for row in rows if starts[row + 1] - starts[row] <= FEW]
        others = sorted(set(rows) - set(few))
        if self._attend is None and others:
            out = ops.paged_attention(query, kv, metadata, scale=scale)
        else:
            out = torch.zeros_like(query)  # also behind the last token
            if others:
                tokens = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in others])
                out[tokens] = self._attend_rows(query[tokens], kv, metadata, others, scale)
        if self._decode is not None and few:
            ends = metadata.seq_lens_cpu
            each = [(at, row) for row in few for at in range(starts[row], starts[row + 1])]
            tokens, chosen = torch.tensor(each).unbind(1)
            seq_lens = torch.tensor([ends[row] - (starts[row + 1] - 1 - at) for at, row in each])
            out[tokens] = self._decode(query[tokens], kv, self._table[chosen], seq_lens, scale)
        return out

    def _attend_rows(
        self, query: Tensor, kv: Tensor, metadata: AttentionMetadata, rows: list[int], scale: float
    ) -> Tensor:
        """Return the attention of some rows by the learner's `paged_attention`; query: their tokens, packed."""
        starts, lens = metadata.query_start_loc_cpu, metadata.seq_lens_cpu
        packed = [0, *accumulate(starts[row + 1] - starts[row] for row in rows)]
        table = self._table if len(rows) == len(lens) else self._table[torch.tensor(rows)]
        arguments: tuple[Any, ...] = (query, kv, packed, [lens[row] for row in rows], table, scale)
        out = ask(self._says, f"{len(rows)} rows", self._attend, *arguments)
        if not isinstance(out, Tensor) or out.shape != query.shape or out.dtype != query.dtype:
            got = f"{tuple(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
            expected = f"{tuple(query.shape)} {query.dtype}"
            raise PieceError(self._says, "the result is like query", f"query is {expected}, the result {got}")
        return out


def visible_table(metadata: AttentionMetadata, block_size: int) -> Tensor:
    """Return the block table [R, most blocks of a row], with the null block behind the end of each row."""
    num_blocks = (metadata.seq_lens + block_size - 1) // block_size
    table = metadata.block_table[:, : -(-max(metadata.seq_lens_cpu) // block_size)]
    columns = torch.arange(table.shape[1], device=table.device)
    return table.masked_fill(columns >= num_blocks[:, None], 0)
