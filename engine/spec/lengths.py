"""Number of drafts per request: constant, or adapted to the drafts accepted lately.

Source: the schedule "heuristic" of assisted generation in transformers (two more after a full success, one less after
a failure), here for each request.
"""

from __future__ import annotations

import numpy as np

from engine.config import SpeculativeConfig


class DraftLengths:
    """Number of drafts of each state slot."""

    def __init__(self, config: SpeculativeConfig, num_slots: int) -> None:
        self._most = config.num_speculative_tokens
        self._adaptive = config.adaptive
        self._largest_batch = config.disable_by_batch_size or num_slots
        self._lengths = [self._most] * num_slots

    def reset(self, slot: int) -> None:
        """Reset `slot` for a new request."""
        self._lengths[slot] = self._most

    def observe(self, slot: int, num_drafts: int, num_accepted: int) -> None:
        """Note that a step accepted some of `num_drafts` > 0 drafts of a request."""
        if not self._adaptive:
            return
        if num_accepted == num_drafts:
            self._lengths[slot] = min(self._most, self._lengths[slot] + 2)
        else:
            self._lengths[slot] = max(1, self._lengths[slot] - 1)

    def wanted(self, slots: np.ndarray, num_rows: int) -> list[int]:
        """Return [R]: drafts for each slot after a step of `num_rows` requests."""
        if num_rows > self._largest_batch:
            return [0] * len(slots)
        return [self._lengths[slot] for slot in slots.tolist()]
