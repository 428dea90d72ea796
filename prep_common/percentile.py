"""The definition of a percentile: linear interpolation between the two closest ranks.

It is the default of `numpy.percentile` and so that of vLLM's benchmarks (vLLM vllm/benchmarks/serve.py).
"""

from __future__ import annotations

from typing import Protocol


class Ordered(Protocol):
    """Numbers in ascending order: a list, a tuple or a NumPy array."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> float: ...


def percentile(ordered: Ordered, percent: float) -> float:
    """Return the percentile (0 to 100) of values in ascending order. Raises ValueError if there are none."""
    if not len(ordered):
        raise ValueError("no values, so no percentile")
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return float(low + (high - low) * (rank - below))


def percentile_or_none(ordered: Ordered, percent: float) -> float | None:
    """Return the percentile, or None if there are no values."""
    return percentile(ordered, percent) if len(ordered) else None
