"""Samples of a time, summarised the way benchmarks report them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tell = Callable[[str], None]
"""Where a benchmark says what it is doing: a status line, or nowhere."""


@dataclass(frozen=True)
class Spread:
    """A distribution of times in milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def spread(seconds: Sequence[float]) -> Spread:
    """Summarise times given in seconds. Percentiles are values that occurred (nearest rank)."""
    if not seconds:
        return Spread(0, *[math.nan] * 5)
    ordered = sorted(1000 * value for value in seconds)

    def percentile(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    mean = sum(ordered) / len(ordered)
    return Spread(len(ordered), mean, percentile(0.5), percentile(0.9), percentile(0.99), ordered[-1])
