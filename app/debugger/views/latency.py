"""Latencies of the finished requests of a run, in milliseconds or steps, and the requests within limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.debugger.trace_index import RequestSummary
from prep_common.percentile import percentile

Kind = Literal["TTFT", "TPOT", "E2E"]
Unit = Literal["ms", "steps"]
TITLES: dict[Kind, str] = {
    "TTFT": "Time to first token",
    "TPOT": "Time per output token",
    "E2E": "End to end",
}
MOST_POINTS = 400


class Latencies(NamedTuple):
    """One entry per finished request, in order of arrival."""

    numbers: list[int]
    """Numbers of the requests."""
    values: dict[Kind, NDArray[np.float64]]
    """nan: the request has no such latency, as a single token has no TPOT."""
    left_out: int
    """Requests that were aborted, or have not finished."""


def latencies(
    requests: Sequence[RequestSummary], unit: Unit, span: tuple[int, int] | None = None
) -> Latencies:
    """Return the latencies of requests that finished, in the steps of `span` if it is given (first and last).

    In steps each counts the step of the arrival and that of the token, so a TTFT is at least 1.
    """
    rows: list[tuple[int, float, float, float]] = []
    left_out = 0
    for request in requests:
        is_finished = request.finish_reason not in (None, "abort") and request.first_token is not None
        if not is_finished or request.ended is None:
            left_out += 1
            continue
        if span is not None and not span[0] <= request.ended <= span[1]:
            continue
        first, whole = _first_and_whole(request, unit)
        gaps = request.num_output_tokens - 1
        rows.append((request.number, first, (whole - first) / gaps if gaps > 0 else math.nan, whole))
    columns = np.array([row[1:] for row in rows], np.float64).reshape(len(rows), 3)
    return Latencies(
        [row[0] for row in rows],
        {kind: columns[:, index] for index, kind in enumerate(TITLES)},
        left_out,
    )


def _first_and_whole(request: RequestSummary, unit: Unit) -> tuple[float, float]:
    if unit == "ms":
        return (
            1e3 * request.ttft_s if request.ttft_s is not None else math.nan,
            1e3 * request.latency_s if request.latency_s is not None else math.nan,
        )
    assert request.first_token is not None and request.ended is not None
    return request.first_token - request.added + 1.0, request.ended - request.added + 1.0


def distribution(values: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return the share of requests, in %, at or below each latency: a line with up to `MOST_POINTS` steps."""
    ordered = np.sort(values[~np.isnan(values)])
    count = len(ordered)
    if not count:
        return []
    ranks = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int))
    points = [(0.0, 0.0)]
    for rank in ranks:
        points += [(float(ordered[rank]), points[-1][1]), (float(ordered[rank]), 100.0 * (rank + 1) / count)]
    return points


def percentiles(values: NDArray[np.float64]) -> dict[int, float]:
    """Return p50, p90 and p99; empty without values."""
    ordered = np.sort(values[~np.isnan(values)])
    return {percent: percentile(ordered, percent) for percent in (50, 90, 99)} if len(ordered) else {}


def first_limit(values: NDArray[np.float64]) -> float:
    """Return the limit to begin with: twice the median, in two digits, at least 1."""
    by_percent = percentiles(values)
    if not by_percent or by_percent[50] <= 0:
        return 1.0
    limit = 2 * by_percent[50]
    digits = 10.0 ** (math.floor(math.log10(limit)) - 1)
    return max(1.0, round(limit / digits) * digits)


class Goodput(NamedTuple):
    """Finished requests within limits."""

    within: dict[Kind, int]
    """Requests within each limit; a request without that latency is within."""
    all: int
    """Requests within every limit."""
    outside: list[tuple[int, list[Kind]]]
    """(number, the limits that it misses) of the other requests, in order of arrival."""


def within_limits(measured: Latencies, limits: Mapping[Kind, float]) -> Goodput:
    misses = {kind: measured.values[kind] > limit for kind, limit in limits.items()}  # nan is not greater
    outside: list[tuple[int, list[Kind]]] = []
    for index, number in enumerate(measured.numbers):
        if missed := [kind for kind in misses if misses[kind][index]]:
            outside.append((number, missed))
    count = len(measured.numbers)
    return Goodput(
        {kind: count - int(is_missed.sum()) for kind, is_missed in misses.items()},
        count - len(outside),
        outside,
    )
