"""Attention with torch's scaled_dot_product_attention over gathered pages.

SDPA wants each row's keys in one piece, the cache has them in blocks, so every layer first gathers: one
`index_select` copies whole pages (a block of one head, keys or values) to where SDPA reads them. Which pages,
and which of their slots are visible, is the same for all layers and worked out once per step.

    decode    rows of similar length together, padded to a common number of blocks, a mask hides the rest;
              the query heads that share a kv head lie where SDPA expects query positions
    prefill   row by row, queries in tiles, so that no tile looks at keys beyond its own end

A row's padding depends on its own length alone, never on its neighbours: the row computes the same numbers
alone as in company.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.backend import AttentionMetadata

QUERY_TILE = 256
"""Queries of one prefill SDPA call."""

GATHER_BYTES = 2 << 20
"""Decode rows are gathered in portions of about this size, so that SDPA finds them in the CPU's cache."""


@dataclass(slots=True)
class _DecodePortion:
    """Decode rows begin .. end (in sorted order), all padded to the same number of blocks."""

    begin: int
    end: int
    pages: Tensor
    """int64 [rows * 2 * kv_heads * blocks], see `_Geometry.pages`."""
    mask: Tensor
    """[rows, 1, 1, blocks * block_size]: 0 where the row has a visible token, -inf elsewhere."""


@dataclass(slots=True)
class _PrefillTile:
    """Queries query_begin .. query_end of the batch see key_begin .. key_end of what their row gathered."""

    query_begin: int
    query_end: int
    key_begin: int
    key_end: int


@dataclass(slots=True)
class _PrefillRow:
    pages: Tensor
    tiles: list[_PrefillTile]


@dataclass(slots=True)
class _Plan:
    """What the layers with one window size share in one step."""

    order: Tensor | None
    """int64 [num_decode_rows]: decode rows sorted by padded length; None when they are already."""
    inverse_order: Tensor | None
    """Where each decode row lies in `order`."""
    decode: list[_DecodePortion]
    prefill: list[_PrefillRow]
    mask: Tensor | None
    """Bottom-right aligned causal mask that every tile cuts its own from."""


class _WriteTargets(NamedTuple):
    """Where this step's tokens go in any layer, padding left out."""

    tokens: Tensor | None
    """int64 [n]: the tokens that have a slot; None when all have."""
    blocks: Tensor
    offsets: Tensor
    """int64 [n]: block and place within it of each such token."""

    @classmethod
    def of(cls, slot_mapping: Tensor, block_size: int) -> _WriteTargets:
        tokens = (slot_mapping >= 0).nonzero().flatten()
        if tokens.shape[0] == slot_mapping.shape[0]:
            return cls(None, slot_mapping // block_size, slot_mapping % block_size)
        slots = slot_mapping[tokens]
        return cls(tokens, slots // block_size, slots % block_size)


class SDPAAttention:
    """Paged attention in terms of `torch.nn.functional.scaled_dot_product_attention`."""

    name = "sdpa"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._workspace = torch.empty(0, device=device)
        self._causal_masks: dict[int | None, Tensor] = {}
        self._plans: dict[int | None, _Plan] = {}
        self._write_targets: _WriteTargets | None = None

    def build(self, metadata: AttentionMetadata) -> None:
        self._plans.clear()
        self._write_targets = None

    def write(self, key: Tensor, value: Tensor, kv: Tensor, metadata: AttentionMetadata) -> None:
        if self._write_targets is None:
            self._write_targets = _WriteTargets.of(metadata.slot_mapping, block_size=kv.shape[3])
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
            plan = self._plans[sliding_window] = self._make_plan(metadata, kv, sliding_window)
        pieces = []
        if plan.decode:
            pieces.append(self._decode(query[: metadata.num_decode_rows], kv, plan, scale))
        for row in plan.prefill:
            pieces += self._prefill(query, kv, row, plan.mask, scale)
        num_tokens = metadata.query_start_loc_cpu[-1]
        if num_tokens < query.shape[0]:
            pieces.append(torch.zeros_like(query[num_tokens:]))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _decode(self, query: Tensor, kv: Tensor, plan: _Plan, scale: float) -> Tensor:
        """query [rows, heads, head_dim], one per row; the same shape out."""
        _, _, kv_heads, _, head_dim = kv.shape
        if plan.order is not None:
            query = query[plan.order]
        grouped = query.reshape(query.shape[0], kv_heads, -1, head_dim)
        pieces = []
        for portion in plan.decode:
            rows = portion.end - portion.begin
            key, value = self._gather(kv, portion.pages).view(rows, 2, kv_heads, -1, head_dim).unbind(1)
            own = grouped[portion.begin : portion.end]
            pieces.append(
                F.scaled_dot_product_attention(own, key, value, attn_mask=portion.mask, scale=scale)
            )
        out = (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).flatten(1, 2)
        return out if plan.inverse_order is None else out[plan.inverse_order]

    def _prefill(
        self, query: Tensor, kv: Tensor, row: _PrefillRow, mask: Tensor | None, scale: float
    ) -> list[Tensor]:
        """One row's part of query [T, heads, head_dim]: a result [tile, heads, head_dim] for each of its tiles."""
        _, _, kv_heads, _, head_dim = kv.shape
        key, value = self._gather(kv, row.pages).view(1, 2, kv_heads, -1, head_dim).unbind(1)
        pieces = []
        for tile in row.tiles:
            num_queries, num_keys = tile.query_end - tile.query_begin, tile.key_end - tile.key_begin
            result = F.scaled_dot_product_attention(
                query[tile.query_begin : tile.query_end].transpose(0, 1).unsqueeze(0),
                key[:, :, tile.key_begin : tile.key_end],
                value[:, :, tile.key_begin : tile.key_end],
                attn_mask=mask[-num_queries:, -num_keys:],
                scale=scale,
                enable_gqa=True,
            )
            pieces.append(result[0].transpose(0, 1))
        return pieces

    def _gather(self, kv: Tensor, pages: Tensor) -> Tensor:
        """Copy pages behind each other: [len(pages), block_size * head_dim], valid until the next call."""
        page_size = kv.shape[3] * kv.shape[4]
        size = pages.shape[0] * page_size
        if self._workspace.numel() < size or self._workspace.dtype != kv.dtype:
            self._workspace = torch.empty(size, dtype=kv.dtype, device=kv.device)
        gathered = self._workspace[:size].view(-1, page_size)
        torch.index_select(_page_view(kv), 0, pages, out=gathered)
        return gathered.to(self._dtype)

    def _make_plan(self, metadata: AttentionMetadata, kv: Tensor, window: int | None) -> _Plan:
        geometry = _Geometry.of(kv)
        order, decode = self._plan_decode(metadata, geometry, window)
        prefill = [
            self._plan_prefill_row(row, metadata, geometry, window)
            for row in range(metadata.num_decode_rows, len(metadata.seq_lens_cpu))
        ]
        widest = max((tile.key_end - tile.key_begin for row in prefill for tile in row.tiles), default=0)
        mask = self._causal_mask(widest, window) if prefill else None
        return _Plan(order, None if order is None else order.argsort(), decode, prefill, mask)

    def _plan_decode(
        self, metadata: AttentionMetadata, geometry: _Geometry, window: int | None
    ) -> tuple[Tensor | None, list[_DecodePortion]]:
        """Sort decode rows by padded length and cut them into portions."""
        num_rows = metadata.num_decode_rows
        if num_rows == 0:
            return None, []
        block_size = geometry.block_size
        seq_lens = np.array(metadata.seq_lens_cpu[:num_rows])
        first_token = np.maximum(seq_lens - window, 0) if window else np.zeros_like(seq_lens)
        first_block = first_token // block_size
        num_blocks = (seq_lens - 1) // block_size + 1 - first_block
        padded = padded_num_blocks(num_blocks, block_size)
        order = np.argsort(padded, kind="stable")
        padded = padded[order]
        is_sorted = bool((order[1:] > order[:-1]).all())
        rows = None if is_sorted else torch.from_numpy(order).to(self._device)

        table = metadata.block_table[:num_rows] if rows is None else metadata.block_table[rows]
        blocks = self._visible_blocks(table, first_block[order], num_blocks[order], int(padded[-1]))
        # Both counted from the first token of the first gathered block.
        visible_end = torch.from_numpy((seq_lens - first_block * block_size)[order]).to(self._device)[:, None]
        visible_begin = torch.from_numpy((first_token - first_block * block_size)[order]).to(self._device)[
            :, None
        ]
        portions = []
        for begin, end in _runs_of_equal(padded):
            width = int(padded[begin])
            pages = geometry.pages(blocks[begin:end, :width])
            place = torch.arange(width * block_size, device=self._device)
            hidden = place >= visible_end[begin:end]
            if window is not None:
                hidden |= place < visible_begin[begin:end]
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
            mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None, :]
            rows_per_portion = max(1, GATHER_BYTES // (width * geometry.bytes_per_block))
            for start in range(begin, end, rows_per_portion):
                own = slice(start - begin, start - begin + rows_per_portion)
                stop = min(start + rows_per_portion, end)
                portions.append(_DecodePortion(start, stop, pages[own].flatten(), mask[own]))
        return rows, portions

    def _visible_blocks(
        self, table: Tensor, first_block: np.ndarray, num_blocks: np.ndarray, width: int
    ) -> Tensor:
        """int64 [rows, width]: the blocks a row reads, then the null block. Stale columns are not looked at."""
        column = torch.arange(width, device=self._device)
        first = torch.from_numpy(first_block).to(self._device)[:, None]
        exists = column < torch.from_numpy(num_blocks).to(self._device)[:, None]
        columns = (first + column).clamp_max(table.shape[1] - 1)
        return table.gather(1, columns).long() * exists

    def _plan_prefill_row(
        self, row: int, metadata: AttentionMetadata, geometry: _Geometry, window: int | None
    ) -> _PrefillRow:
        """Cut one row's queries into tiles and find the pages its first to last query see."""
        block_size = geometry.block_size
        query_begin, query_end = metadata.query_start_loc_cpu[row : row + 2]
        seq_len = metadata.seq_lens_cpu[row]
        position_of_first = seq_len - (query_end - query_begin)
        first_block = _window_begin(position_of_first, window) // block_size
        num_blocks = -(-seq_len // block_size)
        blocks = metadata.block_table[row : row + 1, first_block:num_blocks].long()

        tiles = []
        gathered_from = first_block * block_size
        to_position = position_of_first - query_begin
        for begin in range(query_begin, query_end, QUERY_TILE):
            end = min(begin + QUERY_TILE, query_end)
            key_begin = _window_begin(begin + to_position, window)
            tiles.append(
                _PrefillTile(begin, end, key_begin - gathered_from, end + to_position - gathered_from)
            )
        return _PrefillRow(geometry.pages(blocks).flatten(), tiles)

    def _causal_mask(self, num_keys: int, window: int | None) -> Tensor:
        """Additive mask [QUERY_TILE, >= num_keys], aligned so that the last query and the last key coincide.

        Any tile's mask is its bottom-right corner: visibility depends only on the distance between
        query and key.
        """
        mask = self._causal_masks.get(window)
        if mask is None or mask.shape[1] < num_keys:
            width = max(num_keys, 2 * mask.shape[1] if mask is not None else 0)
            distance = torch.arange(QUERY_TILE - 1, -1, -1)[:, None] * -1 + torch.arange(width - 1, -1, -1)
            hidden = distance < 0
            if window is not None:
                hidden |= distance >= window
            mask = (
                torch.zeros(hidden.shape, dtype=self._dtype)
                .masked_fill_(hidden, float("-inf"))
                .to(self._device)
            )
            self._causal_masks[window] = mask
        return mask


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Where the pages of a layer's cache lie, counted in pages from the layer's first.

    page(block, kind, head) = block * block_stride + kind * kind_stride + head      kind: 0 keys, 1 values
    """

    kv_heads: int
    block_size: int
    block_stride: int
    kind_stride: int
    bytes_per_block: int

    @classmethod
    def of(cls, kv: Tensor) -> _Geometry:
        _, _, kv_heads, block_size, head_dim = kv.shape
        page_size = block_size * head_dim
        bytes_per_block = 2 * kv_heads * page_size * kv.element_size()
        return cls(
            kv_heads, block_size, kv.stride(0) // page_size, kv.stride(1) // page_size, bytes_per_block
        )

    def pages(self, blocks: Tensor) -> Tensor:
        """blocks int64 [rows, n] -> pages [rows, 2, kv_heads, n]: each row's keys head by head, then its values."""
        kind = torch.arange(2, device=blocks.device)[:, None, None] * self.kind_stride
        head = torch.arange(self.kv_heads, device=blocks.device)[:, None]
        return (blocks * self.block_stride)[:, None, None, :] + (kind + head)


def _page_view(kv: Tensor) -> Tensor:
    """One layer's cache as a list of pages [n, block_size * head_dim] that starts with the layer's first.

    The list runs over the other layers' pages too: they lie between this layer's, block-major, and
    `_Geometry` steps over them.
    """
    num_blocks, kinds, kv_heads, block_size, head_dim = kv.shape
    page_size = block_size * head_dim
    span = (num_blocks - 1) * kv.stride(0) + (kinds - 1) * kv.stride(1) + kv_heads * page_size
    return kv.as_strided((span // page_size, page_size), (page_size, 1))


def padded_num_blocks(num_blocks: np.ndarray, block_size: int) -> np.ndarray:
    """Round up to 64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, … tokens.

    Few sizes, so that rows share a call; from 256 tokens on four per doubling, so that padding adds
    at most a quarter.
    """
    quarter = 2 ** np.maximum(np.frexp(num_blocks)[1] - 3, 0)
    step = np.maximum(quarter, -(-64 // block_size))
    return -(-num_blocks // step) * step


def _runs_of_equal(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """(begin, end) of every run of equal values in a sorted array."""
    changes = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    return zip([0, *changes], [*changes, len(values)], strict=True)


def _window_begin(position: int, window: int | None) -> int:
    """The first position that a query at `position` sees."""
    return 0 if window is None else max(0, position - window + 1)
