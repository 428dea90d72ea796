"""How long batches take."""

from __future__ import annotations

import heapq


def sum_of_row_maxima(slots: int, lens: list[int]) -> int:
    """Static batching: each group of `slots` lasts as long as its longest member."""
    return sum(max(lens[start : start + slots]) for start in range(0, len(lens), slots))


def list_schedule(slots: int, lens: list[int]) -> int:
    """Continuous batching: whoever is next takes the slot that frees first (Graham's list scheduling)."""
    free_at = [0] * slots
    for length in lens:
        heapq.heappush(free_at, heapq.heappop(free_at) + length)
    return max(free_at)
