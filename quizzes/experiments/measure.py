"""Timing on a machine that is never quiet: pairs, interleaved, with an interval instead of a digit.

    ratio = paired_ratio(lambda: slow(), lambda: fast())        slow / fast: 2.1 [1.9, 2.4]

A B A B ...: whatever else the machine does meets both. The median of the pairs' ratios is reported with a bootstrap
95 % interval, and repeats stop when the interval is narrow. Who has to decide something looks at lo and hi; an interval
that holds both answers is inconclusive, never a wrong answer.
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
"""Half the interval's width, relative to the median, at which more repeats would not be worth their time."""
BOOTSTRAP_DRAWS = 1000


@dataclass(frozen=True)
class Ratio:
    """How many times longer A took than B."""

    median: float
    lo: float
    hi: float
    """Bootstrap 95 % interval of the median."""
    repeats: int
    a_seconds: float
    b_seconds: float
    """Medians."""

    def is_above(self, bound: float) -> bool | None:
        """True or False if the whole interval says so, None if it cannot be said."""
        if self.lo > bound:
            return True
        return False if self.hi < bound else None


def paired_ratio(
    a: Callable[[], Any],
    b: Callable[[], Any],
    *,
    min_repeats: int = MIN_REPEATS,
    max_repeats: int = MAX_REPEATS,
    seconds: float = 6.0,
    warm_up: bool = True,
) -> Ratio:
    """Time of `a` over time of `b`. Stops when the interval is narrow, at max_repeats, or after `seconds`."""
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
    """(median, lo, hi) with a bootstrap 95 % interval."""
    rng = Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(BOOTSTRAP_DRAWS))
    edge = BOOTSTRAP_DRAWS // 40
    return statistics.median(values), medians[edge], medians[-edge - 1]


@contextmanager
def one_thread() -> Any:
    """torch on one thread while something is measured: barriers between threads are what noise hits hardest."""
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
