"""Plan of a step for the SDPA backend: the pages to gather, and the visible slots in them.

A page is one block of one head, keys or values: block_size * head_dim numbers that lie together in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata

QUERY_TILE = 256
"""Most queries of one prefill call."""

GATHER_BYTES = 2 << 20
"""Decode rows are gathered in portions of about this size, so that SDPA finds them in the CPU's cache."""


class WriteTargets(NamedTuple):
    """The slots of this step's tokens in any layer, without padding."""

    tokens: Tensor | None
    """int64 [n]: the tokens that have a slot; None when all have."""
    blocks: Tensor
    offsets: Tensor
    """int64 [n]: block and place within it of each such token."""

    @classmethod
    def of(cls, slot_mapping: Tensor, block_size: int) -> WriteTargets:
        tokens = (slot_mapping >= 0).nonzero().flatten()
        if tokens.shape[0] == slot_mapping.shape[0]:
            return cls(None, slot_mapping // block_size, slot_mapping % block_size)
        slots = slot_mapping[tokens]
        return cls(tokens, slots // block_size, slots % block_size)


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """Positions of a layer's pages, counted in pages from the layer's first.

    page(block, kind, head) = block * block_stride + kind * kind_stride + head, with kind 0 for keys, 1 for values
    """

    kv_heads: int
    block_size: int
    block_stride: int
    kind_stride: int
    bytes_per_block: int

    @classmethod
    def of(cls, kv: Tensor) -> CacheGeometry:
        """kv: one layer of the cache, [num_blocks, 2, kv_heads, block_size, head_dim]."""
        _, _, kv_heads, block_size, head_dim = kv.shape
        page_size = block_size * head_dim
        strides = kv.stride(0) // page_size, kv.stride(1) // page_size
        return cls(kv_heads, block_size, *strides, 2 * kv_heads * page_size * kv.element_size())

    def pages(self, blocks: Tensor) -> Tensor:
        """blocks int64 [rows, n] -> pages [rows, 2, kv_heads, n]: each row's keys head by head, then its values."""
        kind = torch.arange(2, device=blocks.device)[:, None, None] * self.kind_stride
        head = torch.arange(self.kv_heads, device=blocks.device)[:, None]
        return (blocks * self.block_stride)[:, None, None, :] + (kind + head)


def page_view(kv: Tensor) -> Tensor:
    """One layer's cache as a list of pages [n, block_size * head_dim] that starts with the layer's first.

    The list runs over the other layers' pages too: they lie between this layer's, and `CacheGeometry` steps over them.
    """
    num_blocks, _, kv_heads, block_size, head_dim = kv.shape
    page_size = block_size * head_dim
    span = (num_blocks - 1) * kv.stride(0) + kv.stride(1) + kv_heads * page_size
    return kv.as_strided((span // page_size, page_size), (page_size, 1))


@dataclass(slots=True)
class DecodePortion:
    """Decode rows begin .. end in sorted order, all padded to the same number of blocks."""

    begin: int
    end: int
    pages: Tensor
    """int64 [rows * 2 * kv_heads * blocks], see `CacheGeometry.pages`."""
    mask: Tensor
    """[rows, 1, 1, blocks * block_size]: 0 where the row has a visible token, -inf elsewhere."""


@dataclass(slots=True)
class PrefillTile:
    """Queries query_begin .. query_end of the batch see key_begin .. key_end of what their row gathered."""

    query_begin: int
    query_end: int
    key_begin: int
    key_end: int
    mask: Tensor
    """[queries, keys]: 0 where a query sees a key, -inf elsewhere."""


@dataclass(slots=True)
class PrefillRow:
    """One row with several queries."""

    pages: Tensor
    """int64 [2 * kv_heads * blocks]."""
    tiles: list[PrefillTile]


@dataclass(slots=True)
class Plan:
    """The plan that all layers with one window size share in a step."""

    decode: list[DecodePortion]
    order: Tensor | None
    """int64 [num_decode_rows]: decode rows sorted by padded length; None when they are already."""
    inverse_order: Tensor | None
    """Index of each decode row in `order`."""
    prefill: list[PrefillRow]


class Planner:
    """Makes the plan of a step; keeps the causal masks that all steps cut theirs from."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._causal_masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def plan(
        self, metadata: AttentionMetadata, geometry: CacheGeometry, window: int | None, dtype: torch.dtype
    ) -> Plan:
        """dtype is the queries', and so the masks'."""
        decode, order = self._decode(metadata, geometry, window, dtype)
        prefill_rows = range(metadata.num_decode_rows, len(metadata.seq_lens_cpu))
        prefill = [self._prefill_row(row, metadata, geometry, window, dtype) for row in prefill_rows]
        return Plan(decode, order, None if order is None else order.argsort(), prefill)

    def _decode(
        self, metadata: AttentionMetadata, geometry: CacheGeometry, window: int | None, dtype: torch.dtype
    ) -> tuple[list[DecodePortion], Tensor | None]:
        """Sort decode rows by padded length, and cut them into portions of equal length and limited size."""
        if not metadata.num_decode_rows:
            return [], None
        block_size = geometry.block_size
        seq_lens = np.array(metadata.seq_lens_cpu[: metadata.num_decode_rows])
        first_token = np.maximum(seq_lens - window, 0) if window else np.zeros_like(seq_lens)
        first_block = first_token // block_size
        num_blocks = (seq_lens - 1) // block_size + 1 - first_block
        padded = padded_num_blocks(num_blocks, block_size)

        order = np.argsort(padded, kind="stable")
        padded = padded[order]
        table = metadata.block_table[: metadata.num_decode_rows]
        is_sorted = bool((order[1:] > order[:-1]).all())
        order_tensor = None
        if not is_sorted:
            order_tensor = torch.from_numpy(order).to(self._device)
            table = table[order_tensor]

        def column(values: np.ndarray) -> Tensor:
            """A value per row, in sorted order: int64 [rows, 1]."""
            return torch.from_numpy(values[order]).to(self._device)[:, None]

        blocks = _gathered_blocks(table, column(first_block), column(num_blocks), width=int(padded[-1]))
        # The row's visible tokens, counted from the first token of its first gathered block.
        visible_from = column(first_token - first_block * block_size)
        visible_to = column(seq_lens - first_block * block_size)
        portions = []
        for begin, end in _runs_of_equal(padded):
            width = int(padded[begin])
            pages = geometry.pages(blocks[begin:end, :width])
            place = torch.arange(width * block_size, device=self._device)
            hidden = place >= visible_to[begin:end]
            if window is not None:
                hidden |= place < visible_from[begin:end]
            mask = _additive(hidden, dtype)[:, None, None, :]
            num_rows = max(1, GATHER_BYTES // (width * geometry.bytes_per_block))
            for start in range(0, end - begin, num_rows):
                stop = min(start + num_rows, end - begin)
                own_pages = pages[start:stop].flatten()
                portions.append(DecodePortion(begin + start, begin + stop, own_pages, mask[start:stop]))
        return portions, order_tensor

    def _prefill_row(
        self,
        row: int,
        metadata: AttentionMetadata,
        geometry: CacheGeometry,
        window: int | None,
        dtype: torch.dtype,
    ) -> PrefillRow:
        """Cut one row's queries into tiles, and find the pages that its first to last query see."""
        query_begin, query_end = metadata.query_start_loc_cpu[row : row + 2]
        seq_len = metadata.seq_lens_cpu[row]
        first_position = seq_len - (query_end - query_begin)
        first_block = _first_visible(first_position, window) // geometry.block_size
        num_blocks = -(-seq_len // geometry.block_size)
        blocks = metadata.block_table[row : row + 1, first_block:num_blocks].long()

        tiles = []
        for begin in range(query_begin, query_end, QUERY_TILE):
            end = min(begin + QUERY_TILE, query_end)
            position = first_position + begin - query_begin
            # Counted from the first gathered token, as the keys will lie.
            key_begin = _first_visible(position, window) - first_block * geometry.block_size
            key_end = position + (end - begin) - first_block * geometry.block_size
            mask = self._causal_mask(end - begin, key_end - key_begin, window, dtype)
            tiles.append(PrefillTile(begin, end, key_begin, key_end, mask))
        return PrefillRow(geometry.pages(blocks).flatten(), tiles)

    def _causal_mask(self, num_queries: int, num_keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """[num_queries, num_keys] for queries and keys that end at the same position.

        Visibility depends only on the distance between query and key, so every such mask is the bottom-right corner of
        one large mask.
        """
        mask = self._causal_masks.get((window, dtype))
        if mask is None or mask.shape[1] < num_keys:
            width = num_keys if mask is None else max(num_keys, 2 * mask.shape[1])
            query_from_end = torch.arange(QUERY_TILE - 1, -1, -1, device=self._device)[:, None]
            distance = torch.arange(width - 1, -1, -1, device=self._device) - query_from_end
            hidden = distance < 0
            if window is not None:
                hidden |= distance >= window
            mask = self._causal_masks[window, dtype] = _additive(hidden, dtype)
        return mask[-num_queries:, -num_keys:]


def padded_num_blocks(num_blocks: np.ndarray, block_size: int) -> np.ndarray:
    """Round up to 64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, … tokens.

    Few sizes, so that rows share a call; from 256 tokens on four per doubling, so that padding adds at most a quarter.
    A row's size depends on its own length alone: its results do not depend on the batch.
    """
    quarter = 2 ** np.maximum(np.frexp(num_blocks)[1] - 3, 0)
    step = np.maximum(quarter, -(-64 // block_size))
    return -(-num_blocks // step) * step


def _gathered_blocks(table: Tensor, first: Tensor, count: Tensor, width: int) -> Tensor:
    """int64 [rows, width]: a row's `count` blocks from column `first` on, then the null block.

    This drops stale columns of the table, which lie behind a row's last block.
    """
    column = torch.arange(width, device=table.device)
    columns = (first + column).clamp_max(table.shape[1] - 1)
    return table.gather(1, columns).long() * (column < count)


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """-inf where hidden, 0 elsewhere: what SDPA adds to the scores."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def _runs_of_equal(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """(begin, end) of every run of equal values in a sorted array."""
    changes = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    return zip([0, *changes], [*changes, len(values)], strict=True)


def _first_visible(position: int, window: int | None) -> int:
    """The first position that a query at `position` sees."""
    return 0 if window is None else max(0, position - window + 1)
