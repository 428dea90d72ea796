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

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from kernels import ops

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
    """int64 [2 * rows * kv_heads * blocks]: keys, then values, see `_page_view`."""
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

    decode_order: Tensor | None
    """int64 [num_decode_rows]: decode rows sorted by padded length; None when they are already."""
    decode: list[_DecodePortion]
    prefill: list[_PrefillRow]
    mask: Tensor | None
    """Bottom-right aligned causal mask that every tile cuts its own from."""


class SDPAAttention:
    """Paged attention in terms of `torch.nn.functional.scaled_dot_product_attention`."""

    name = "sdpa"

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._workspace = torch.empty(0, device=device)
        self._causal_masks: dict[int | None, Tensor] = {}
        self._plans: dict[int | None, _Plan] = {}

    def build(self, metadata: AttentionMetadata) -> None:
        self._plans.clear()

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
        plan = self._plans.get(sliding_window)
        if plan is None:
            plan = self._plans[sliding_window] = self._make_plan(metadata, kv, sliding_window)
        out = torch.empty_like(query)
        out[metadata.query_start_loc_cpu[-1] :] = 0
        if plan.decode:
            num_rows = metadata.num_decode_rows
            self._decode(query[:num_rows], kv, plan, scale, out[:num_rows])
        for row in plan.prefill:
            self._prefill(query, kv, row, plan.mask, scale, out)
        return out

    def _decode(self, query: Tensor, kv: Tensor, plan: _Plan, scale: float, out: Tensor) -> None:
        """query, out [rows, heads, head_dim], one query per row."""
        _, _, kv_heads, _, head_dim = kv.shape
        if plan.decode_order is not None:
            query = query[plan.decode_order]
        grouped = query.reshape(query.shape[0], kv_heads, -1, head_dim)
        results = []
        for portion in plan.decode:
            rows = portion.end - portion.begin
            key, value = self._gather(kv, portion.pages).view(2, rows, kv_heads, -1, head_dim)
            results.append(
                F.scaled_dot_product_attention(
                    grouped[portion.begin : portion.end], key, value, attn_mask=portion.mask, scale=scale
                )
            )
        result = torch.cat(results).view_as(out)
        if plan.decode_order is None:
            out.copy_(result)
        else:
            out[plan.decode_order] = result

    def _prefill(
        self, query: Tensor, kv: Tensor, row: _PrefillRow, mask: Tensor | None, scale: float, out: Tensor
    ) -> None:
        """Attend one row's queries: query, out [T, heads, head_dim], of which the row has its tiles."""
        _, _, kv_heads, _, head_dim = kv.shape
        key, value = self._gather(kv, row.pages).view(2, 1, kv_heads, -1, head_dim)
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
            out[tile.query_begin : tile.query_end] = result[0].transpose(0, 1)

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
        decode_order, decode = self._plan_decode(metadata, geometry, window)
        prefill = [
            self._plan_prefill_row(row, metadata, geometry, window)
            for row in range(metadata.num_decode_rows, len(metadata.seq_lens_cpu))
        ]
        widest = max((tile.key_end - tile.key_begin for row in prefill for tile in row.tiles), default=0)
        mask = self._causal_mask(widest, window) if prefill else None
        return _Plan(decode_order, decode, prefill, mask)

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
        padded = padded_num_blocks(num_blocks)

        order = np.argsort(padded, kind="stable")
        is_sorted = bool((order[1:] > order[:-1]).all())
        padded = padded[order]
        rows = torch.from_numpy(order).to(self._device)
        row_seq_lens = metadata.seq_lens[:num_rows].long()[rows, None]
        row_first_block = torch.from_numpy(first_block[order]).to(self._device)[:, None]
        row_num_blocks = torch.from_numpy(num_blocks[order]).to(self._device)[:, None]
        portions = []
        for begin, end in _portion_bounds(padded, geometry.bytes_per_block):
            column = torch.arange(int(padded[begin]), device=self._device)
            chosen = slice(begin, end)
            exists = column < row_num_blocks[chosen]
            columns = (row_first_block[chosen] + column).where(exists, 0)
            blocks = metadata.block_table[rows[chosen, None], columns].long().where(exists, 0)

            position = torch.arange(int(padded[begin]) * block_size, device=self._device)
            position = position + row_first_block[chosen] * block_size
            visible = position < row_seq_lens[chosen]
            if window is not None:
                visible &= position >= row_seq_lens[chosen] - window
            mask = torch.zeros(visible.shape, dtype=self._dtype, device=self._device)
            mask.masked_fill_(~visible, float("-inf"))
            portions.append(_DecodePortion(begin, end, geometry.pages(blocks), mask[:, None, None, :]))
        return (None if is_sorted else rows), portions

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
            tiles.append(_PrefillTile(begin, end, key_begin - gathered_from, end + to_position - gathered_from))
        return _PrefillRow(geometry.pages(blocks), tiles)

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
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf")).to(self._device)
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
        return cls(kv_heads, block_size, kv.stride(0) // page_size, kv.stride(1) // page_size, bytes_per_block)

    def pages(self, blocks: Tensor) -> Tensor:
        """blocks int64 [rows, n] -> pages [2 * rows * kv_heads * n], in the order SDPA reads them."""
        kind = torch.arange(2, device=blocks.device)[:, None, None, None] * self.kind_stride
        head = torch.arange(self.kv_heads, device=blocks.device)[:, None]
        return (blocks[:, None, :] * self.block_stride + head + kind).flatten()


def _page_view(kv: Tensor) -> Tensor:
    """One layer's cache as a list of pages [n, block_size * head_dim] that starts with the layer's first.

    The list runs over the other layers' pages too: they lie between this layer's, block-major, and
    `_Geometry` steps over them.
    """
    num_blocks, kinds, kv_heads, block_size, head_dim = kv.shape
    page_size = block_size * head_dim
    span = (num_blocks - 1) * kv.stride(0) + (kinds - 1) * kv.stride(1) + kv_heads * page_size
    return kv.as_strided((span // page_size, page_size), (page_size, 1))


def padded_num_blocks(num_blocks: np.ndarray) -> np.ndarray:
    """Round up to 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, …: four sizes per doubling, at most a quarter more."""
    step = 2 ** np.maximum(np.frexp(num_blocks)[1] - 3, 0)
    return -(-num_blocks // step) * step


def _portion_bounds(padded: np.ndarray, bytes_per_block: int) -> list[tuple[int, int]]:
    """Cut sorted rows where the padded length changes and where GATHER_BYTES is reached."""
    bounds = []
    changes = [0, *(np.flatnonzero(np.diff(padded)) + 1).tolist(), len(padded)]
    for begin, end in zip(changes, changes[1:], strict=False):
        most = max(1, GATHER_BYTES // (int(padded[begin]) * bytes_per_block))
        bounds += [(start, min(start + most, end)) for start in range(begin, end, most)]
    return bounds


def _window_begin(position: int, window: int | None) -> int:
    """The first position that a query at `position` sees."""
    return 0 if window is None else max(0, position - window + 1)
