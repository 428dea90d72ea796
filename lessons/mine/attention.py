"""The learner's attention as an attention backend. Keys and values are written by our kernel.

Rows with few queries (a decoded token and its drafts) go to the kernel of the lab cpp-paged-decode if there is one, all
others to `paged_attention` of lesson 08. Our kernel takes the place of a missing piece.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata, AttentionShape
from kernels import ops
from lessons.mine.errors import PieceError, ask
from lessons.mine.workspace import current

FEW = 8
"""Queries of a row that each become a row of the decode kernel, which sees the tokens up to its own."""


class Part(NamedTuple):
    """Tokens of a step that one piece computes, and its rows; every layer takes the same."""

    tokens: Tensor
    """Places in the packed queries."""
    starts: list[int]
    """Start of each row in `tokens`, and the end."""
    seq_lens: list[int]
    table: Tensor


class MineAttention:
    """Calls the learner's pieces once per layer. They know no sliding window: such layers use our kernel."""

    name = "mine"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        pieces = current()
        piece = pieces["attention"]
        self._says, self._attend, self._decode = piece.says, piece.item, pieces["decode"].item
        self._parts: tuple[Part, Part] | None = None
        """Rows with few queries, each query a row of its own; all other rows."""

    @classmethod
    def unsupported(cls, shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why a model of this shape cannot be served; None if it can."""
        return (
            None if dtype == shape.query_dtype else "your attention reads a cache in the type of the queries"
        )

    def build(self, metadata: AttentionMetadata) -> None:
        """Forget the rows of the last step."""
        self._parts = None

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
        if self._parts is None:
            decodes = self._decode is not None and self._decode.takes(query, kv)
            self._parts = share_out(metadata, kv.shape[3], FEW if decodes else 0)
        few, others = self._parts
        if others.seq_lens and self._attend is None:
            out = ops.paged_attention(query, kv, metadata, scale=scale)
        else:
            out = torch.zeros_like(query)  # also behind the last token
            if others.seq_lens:
                out[others.tokens] = self._attend_rows(query[others.tokens], kv, others, scale)
        if self._decode is not None and few.seq_lens:
            seq_lens = torch.tensor(few.seq_lens, dtype=torch.int32)
            out[few.tokens] = self._decode(query[few.tokens], kv, few.table, seq_lens, scale)
        return out

    def _attend_rows(self, query: Tensor, kv: Tensor, part: Part, scale: float) -> Tensor:
        """Return the attention of rows by the learner's `paged_attention`; query: their tokens."""
        arguments: tuple[Any, ...] = (query, kv, part.starts, part.seq_lens, part.table, scale)
        out = ask(self._says, f"{len(part.seq_lens)} rows", self._attend, *arguments)
        if not isinstance(out, Tensor) or out.shape != query.shape or out.dtype != query.dtype:
            got = f"{tuple(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
            expected = f"{tuple(query.shape)} {query.dtype}"
            raise PieceError(self._says, "the result is like query", f"query is {expected}, the result {got}")
        return out


def share_out(metadata: AttentionMetadata, block_size: int, few: int) -> tuple[Part, Part]:
    """Return the queries of rows with at most `few` queries as rows of their own, and the other rows."""
    starts, ends = metadata.query_start_loc_cpu, metadata.seq_lens_cpu
    table = visible_table(metadata, block_size)
    spans = [range(begin, end) for begin, end in pairwise(starts)]
    short = [(at, row) for row, span in enumerate(spans) if len(span) <= few for at in span]
    rest = [row for row, span in enumerate(spans) if len(span) > few]
    lens = [ends[row] - (spans[row][-1] - at) for at, row in short]
    return (
        Part(
            torch.tensor([at for at, _ in short]),
            [*range(len(short) + 1)],
            lens,
            table[[r for _, r in short]],
        ),
        Part(
            torch.tensor([at for row in rest for at in spans[row]]),
            [0, *accumulate(len(spans[row]) for row in rest)],
            [ends[row] for row in rest],
            table[rest],
        ),
    )


def visible_table(metadata: AttentionMetadata, block_size: int) -> Tensor:
    """Return the block table [R, most blocks of a row], with the null block behind the end of each row."""
    num_blocks = (metadata.seq_lens + block_size - 1) // block_size
    table = metadata.block_table[:, : -(-max(metadata.seq_lens_cpu) // block_size)]
    columns = torch.arange(table.shape[1], device=table.device)
    return table.masked_fill(columns >= num_blocks[:, None], 0)
