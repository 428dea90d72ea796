"""Timing on a noisy machine: interleaved pairs and a confidence interval.

    ratio = paired_ratio(lambda: slow(), lambda: fast())        slow / fast: 2.1 [1.9, 2.4]

A and B alternate, so that other load on the machine affects both. The median of the pairs' ratios comes with a
bootstrap 95 % interval, and repeats stop when the interval is narrow. Decide by lo and hi; an interval that contains
both answers is inconclusive.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

MIN_REPEATS, MAX_REPEATS = 5, 25
NARROW = 0.1
"""Half the interval's width, relative to the median, at which repeats stop."""
BOOTSTRAP_DRAWS = 1000


@dataclass(frozen=True)
class Ratio:
    """Time of A over time of B."""

    median: float
    lo: float
    hi: float
    """Bootstrap 95 % interval of the median."""
    repeats: int
    a_seconds: float
    b_seconds: float
    """Medians."""

    @property
    def interval(self) -> dict[str, float]:
        """The interval as fields of a result."""
        return {"lo": self.lo, "hi": self.hi}


def paired_ratio(
    a: Callable[[], Any],
    b: Callable[[], Any],
    *,
    min_repeats: int = MIN_REPEATS,
    max_repeats: int = MAX_REPEATS,
    seconds: float = 6.0,
    warm_up: bool = True,
) -> Ratio:
    """Measure time of `a` over time of `b`, until the interval is narrow, for max_repeats, or for `seconds`."""
    if warm_up:
        a()
        b()
    pairs: list[tuple[float, float]] = []
    began = time.perf_counter()
    with one_thread():
        while len(pairs) < max_repeats:
            pairs.append((_time(a), _time(b)))
            if len(pairs) < min_repeats:
                continue
            ratio = _summary(pairs)
            if ratio.hi - ratio.lo <= 2 * NARROW * ratio.median or time.perf_counter() - began > seconds:
                break
    return _summary(pairs)


def median_interval(values: list[float], *, seed: int = 0) -> tuple[float, float, float]:
    """Return (median, lo, hi) with a bootstrap 95 % interval."""
    rng = Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(BOOTSTRAP_DRAWS))
    edge = BOOTSTRAP_DRAWS // 40
    return statistics.median(values), medians[edge], medians[-edge - 1]


@contextmanager
def one_thread() -> Any:
    """Run torch on one thread while measuring: noise delays barriers between threads most."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _time(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _summary(pairs: list[tuple[float, float]]) -> Ratio:
    median, lo, hi = median_interval([first / second for first, second in pairs])
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Ratio(median, lo, hi, len(pairs), a, b)
