"""The batch that paged attention takes: which query belongs to which row, and where each row's keys lie."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class AttentionBatch:
    """R rows (requests) with T queries in all, packed behind each other; a row's keys lie in blocks of the cache.

        tokens             [ r0 | r1 | r2 r2 r2 r2 | r3 r3 ]         T = 8, R = 4
        query_start_loc      0    1    2             6       8

    The queries of a row are the last of its tokens: query i of query_len stands at position
    seq_len - query_len + i. Tokens from query_start_loc[R] on are padding. All tensors lie on the queries' device.
    """

    query_start_loc: Tensor
    """int32 [R + 1]: row r owns tokens query_start_loc[r] .. query_start_loc[r + 1] - 1. Steps of the same
    layout share it: read only."""
    seq_lens: Tensor
    """int32 [R]: tokens of the row in the cache, those of this step included."""
    block_table: Tensor
    """int32 [R, max_blocks], rows may be strided: column j holds positions j * block_size and on. Columns past
    the row's last block are stale: they may hold anything and are not read."""
    max_query_len: int | None = None
    """Upper bound on the number of queries of a row; 1 promises a decode batch. None if it is unknown."""
