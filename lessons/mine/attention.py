"""The learner's `paged_attention` as an attention backend. Keys and values are written by our kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata, AttentionShape
from kernels import ops
from lessons.mine.errors import PieceError, ask
from lessons.mine.workspace import current


class MineAttention:
    """Calls the learner's function once per layer. It knows no sliding window: such layers use our kernel."""

    name = "mine"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        piece = current()["attention"]
        self._says, self._attend = piece.says, piece.item
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
        if sliding_window is not None or self._attend is None:
            return ops.paged_attention(query, kv, metadata, scale=scale, sliding_window=sliding_window)
        if self._block_size != kv.shape[3]:
            self._block_size = kv.shape[3]
            self._table = visible_table(metadata, self._block_size)
        starts, lens = metadata.query_start_loc_cpu, metadata.seq_lens_cpu
        tokens = query[: starts[-1]]
        arguments: tuple[Any, ...] = (tokens, kv, starts, lens, self._table, scale)
        out = ask(self._says, f"{len(lens)} rows", self._attend, *arguments)
        if not isinstance(out, Tensor) or out.shape != tokens.shape or out.dtype != tokens.dtype:
            got = f"{tuple(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
            expected = f"{tuple(tokens.shape)} {tokens.dtype}"
            raise PieceError(self._says, "the result is like query", f"query is {expected}, the result {got}")
        if len(tokens) == len(query):
            return out
        return torch.cat([out, query.new_zeros((len(query) - len(tokens), *query.shape[1:]))])


def visible_table(metadata: AttentionMetadata, block_size: int) -> Tensor:
    """Return the block table [R, most blocks of a row], with the null block behind the end of each row."""
    num_blocks = (metadata.seq_lens + block_size - 1) // block_size
    table = metadata.block_table[:, : -(-max(metadata.seq_lens_cpu) // block_size)]
    columns = torch.arange(table.shape[1], device=table.device)
    return table.masked_fill(columns >= num_blocks[:, None], 0)
