"""Samples of a time, summarised the way benchmarks report them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.percentile import percentile

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
    """Summarise times given in seconds."""
    if not seconds:
        return Spread(0, *[math.nan] * 5)
    ordered = sorted(1000 * value for value in seconds)
    mean = sum(ordered) / len(ordered)
    p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
    return Spread(len(ordered), mean, p50, p90, p99, ordered[-1])
