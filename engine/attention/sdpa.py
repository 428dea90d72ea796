"""Attention with torch's scaled_dot_product_attention over gathered pages.

SDPA wants each row's keys in one piece, the cache has them in blocks, so every layer first gathers: one `index_select`
copies whole pages to where SDPA reads them. Which pages, and what is visible of them, is the same for all layers and
planned once per step (`sdpa_plan.py`).

    decode    rows of similar length together, padded to a common number of blocks, a mask hides the rest;
              the query heads that share a kv head lie where SDPA expects query positions
    prefill   row by row, queries in tiles, so that no tile looks at keys beyond its own end

Slots past a row's end in its last block are gathered and masked: they must hold finite numbers, as the keys of an
earlier request and a zeroed cache do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.backend import AttentionMetadata, AttentionShape
from engine.attention.sdpa_plan import CacheGeometry, Plan, Planner, PrefillRow, WriteTargets, page_view


class SDPAAttention:
    """Paged attention in terms of `torch.nn.functional.scaled_dot_product_attention`."""

    name = "sdpa"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._planner = Planner(device)
        self._workspace = torch.empty(0, device=device)
        self._plans: dict[int | None, Plan] = {}
        self._write_targets: WriteTargets | None = None

    @classmethod
    def unsupported(cls, shape: AttentionShape, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why a model of this shape cannot be served; None if it can."""
        return None if dtype.itemsize > 1 else "it reads no quantised KV cache"

    def build(self, metadata: AttentionMetadata) -> None:
        """Forget the last step. The first layer with a window size makes the plan for all that share it."""
        self._plans.clear()
        self._write_targets = None

    def write(self, key: Tensor, value: Tensor, kv: Tensor, metadata: AttentionMetadata) -> None:
        if self._write_targets is None:
            self._write_targets = WriteTargets.of(metadata.slot_mapping, block_size=kv.shape[3])
        tokens, blocks, offsets = self._write_targets
        pairs = torch.stack((key, value), dim=1).to(kv.dtype)
        kv[blocks, :, :, offsets] = pairs if tokens is None else pairs[tokens]

    def attend(
        self,
        query: Tensor,
        kv: Tensor,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        plan = self._plans.get(sliding_window)
        if plan is None:
            plan = self._planner.plan(metadata, CacheGeometry.of(kv), sliding_window, query.dtype)
            self._plans[sliding_window] = plan
        pieces = []
        if plan.decode:
            pieces.append(self._decode(query[: metadata.num_decode_rows], kv, plan, scale))
        for row in plan.prefill:
            pieces += self._prefill(query, kv, row, scale)
        num_tokens = metadata.query_start_loc_cpu[-1]
        if num_tokens < query.shape[0]:
            pieces.append(torch.zeros_like(query[num_tokens:]))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _decode(self, query: Tensor, kv: Tensor, plan: Plan, scale: float) -> Tensor:
        """query [rows, heads, head_dim], one per row; the same shape out."""
        _, _, kv_heads, _, head_dim = kv.shape
        if plan.order is not None:
            query = query[plan.order]
        grouped = query.reshape(query.shape[0], kv_heads, -1, head_dim)
        pieces = []
        for portion in plan.decode:
            rows = portion.end - portion.begin
            pages = self._gather(kv, portion.pages, query.dtype)
            key, value = pages.view(rows, 2, kv_heads, -1, head_dim).unbind(1)
            own = grouped[portion.begin : portion.end]
            pieces.append(F.scaled_dot_product_attention(own, key, value, portion.mask, scale=scale))
        out = (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).flatten(1, 2)
        return out if plan.inverse_order is None else out[plan.inverse_order]

    def _prefill(self, query: Tensor, kv: Tensor, row: PrefillRow, scale: float) -> list[Tensor]:
        """One row's part of query [T, heads, head_dim]: a result [tile, heads, head_dim] for each of its tiles."""
        _, _, kv_heads, _, head_dim = kv.shape
        pages = self._gather(kv, row.pages, query.dtype)
        key, value = pages.view(1, 2, kv_heads, -1, head_dim).unbind(1)
        pieces = []
        for tile in row.tiles:
            queries = query[tile.query_begin : tile.query_end].transpose(0, 1)[None]
            keys, values = (tensor[:, :, tile.key_begin : tile.key_end] for tensor in (key, value))
            result = F.scaled_dot_product_attention(
                queries, keys, values, tile.mask, scale=scale, enable_gqa=True
            )
            pieces.append(result[0].transpose(0, 1))
        return pieces

    def _gather(self, kv: Tensor, pages: Tensor, dtype: torch.dtype) -> Tensor:
        """Copy pages behind each other: [len(pages), block_size * head_dim] in dtype, valid until the next call.

        The buffer is reused: fresh memory of this size costs more than the copy.
        """
        page_size = kv.shape[3] * kv.shape[4]
        size = pages.shape[0] * page_size
        if self._workspace.numel() < size or self._workspace.dtype != kv.dtype:
            self._workspace = torch.empty(size, dtype=kv.dtype, device=kv.device)
        gathered = self._workspace[:size].view(-1, page_size)
        torch.index_select(page_view(kv), 0, pages, out=gathered)
        return gathered.to(dtype)
