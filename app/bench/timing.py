"""Summaries of timed samples, as benchmarks report them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import psutil

from prep_common.percentile import percentile

Tell = Callable[[str], None]
"""Function that shows the current activity of a benchmark, for example in a status line."""


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
    """Summarise times given in seconds; without samples every figure is NaN."""
    if not seconds:
        return Spread(0, *[math.nan] * 5)
    ordered = sorted(1000 * value for value in seconds)
    mean = sum(ordered) / len(ordered)
    p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
    return Spread(len(ordered), mean, p50, p90, p99, ordered[-1])


@contextmanager
def partial_results(report: Any) -> Iterator[None]:
    """End the block at Ctrl-C; `report.interrupted` then says that it holds what was measured so far."""
    try:
        yield
    except KeyboardInterrupt:
        report.interrupted = True


def machine_busy_seconds() -> float:
    """Return the processor time of all programs since the machine started, in seconds."""
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0)


def watch_other_programs() -> Callable[[], float]:
    """Return a function that returns the mean number of cores other programs have used since this call.

    Child processes of this one count as its own once they have ended.
    """

    def others_seconds() -> float:
        return machine_busy_seconds() - sum(os.times()[:4])

    began, before = perf_counter(), others_seconds()
    return lambda: max(0.0, others_seconds() - before) / max(perf_counter() - began, 1e-9)
