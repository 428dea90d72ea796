"""Compare the figures of two runs, per request and for the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from common.percentile import percentile_or_none
from engine.trace.history import RequestHistory
from engine.trace.run_totals import RequestTotals, RunTotals, clock

Better = Literal["lower", "higher", ""]


@dataclass(frozen=True)
class RequestDelta:
    """One request in both runs. Pairs are (a, b); None: it did not happen, or the request is not in that run."""

    request_id: str
    first_token_step: tuple[int | None, int | None]
    end_step: tuple[int | None, int | None]
    waiting_steps: tuple[int, int]  # steps that it waited, before its start and after preemptions
    preemptions: tuple[int, int]
    cached_tokens: tuple[int, int]  # prefix hit at its first admission
    computed_tokens: tuple[int, int]  # tokens that its rows computed, including recomputed ones and drafts
    recomputed_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    tokens: str  # same, shorter (one is a prefix of the other), different at N, or missing in a or b
    ends: tuple[str, str]


@dataclass(frozen=True)
class Figure:
    """One figure of both runs."""

    name: str
    unit: str
    a: float | None
    b: float | None
    better: Better  # the better direction; empty if neither is

    @property
    def delta(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


def request_deltas(a: RunTotals, b: RunTotals) -> list[RequestDelta]:
    """Compare all requests, in the order of arrival in the first run, then those that only the second run has."""
    ours, theirs = ({key: n for n, key in enumerate(run.keys)} for run in (a, b))
    return [_delta(key, a, ours.get(key), b, theirs.get(key)) for key in dict.fromkeys((*ours, *theirs))]


def _delta(key: str, a: RunTotals, number_a: int | None, b: RunTotals, number_b: int | None) -> RequestDelta:
    (one, life_a), (other, life_b) = _find(a, number_a), _find(b, number_b)
    return RequestDelta(
        key,
        (_first(life_a), _first(life_b)),
        (one.ended if one else None, other.ended if other else None),
        (_waiting_steps(a, one), _waiting_steps(b, other)),
        (len(one.preempted) if one else 0, len(other.preempted) if other else 0),
        (one.num_cached_tokens if one else 0, other.num_cached_tokens if other else 0),
        (life_a.computed, life_b.computed),
        (life_a.recomputed, life_b.recomputed),
        (len(one.tokens) if one else 0, len(other.tokens) if other else 0),
        _compare_tokens(one, other),
        (_end(one), _end(other)),
    )


def _find(run: RunTotals, number: int | None) -> tuple[RequestHistory | None, RequestTotals]:
    return (None, RequestTotals()) if number is None else (run.reader.requests[number], run.lives[number])


def _first(life: RequestTotals) -> int | None:
    return life.token_steps[0] if life.token_steps else None


def _end(request: RequestHistory | None) -> str:
    return "missing" if request is None else (request.finish_reason or "unfinished")


def _waiting_steps(run: RunTotals, request: RequestHistory | None) -> int:
    """Steps that a request waited."""
    if request is None:
        return 0
    last = run.reader.num_steps if request.ended is None else min(request.ended, run.reader.num_steps)
    ran = sum((last if stay.left is None else min(stay.left, last)) - stay.admitted for stay in request.stays)
    return max(0, last - request.added - ran)


def _compare_tokens(a: RequestHistory | None, b: RequestHistory | None) -> str:
    if a is None or b is None:
        return f"missing in {'a' if a is None else 'b'}"
    for index, (one, other) in enumerate(zip(a.tokens, b.tokens, strict=False)):
        if one != other:
            return f"different at {index}"
    return "same" if len(a.tokens) == len(b.tokens) else "shorter"


def figures_of(a: RunTotals, b: RunTotals) -> list[Figure]:
    ours, theirs = _sums(a), _sums(b)
    figures = [Figure(name, unit, ours[name], theirs[name], better) for name, unit, better in _FIGURES]
    if clock(a.reader) == clock(b.reader) == "wall":
        times = (_times(a), _times(b))
        figures += [Figure(name, "ms", times[0][name], times[1][name], "lower") for name in times[0]]
    return figures


_FIGURES: tuple[tuple[str, str, Better], ...] = (
    ("steps", "steps", "lower"),
    ("steps with rows", "steps", "lower"),
    ("computed", "tokens", "lower"),
    ("recomputed", "tokens", "lower"),
    ("output", "tokens", "higher"),
    ("preemptions", "", "lower"),
    ("evictions", "blocks", "lower"),
    ("prefix hits", "tokens", "higher"),
    ("found on resume", "tokens", "higher"),
    ("most waiting", "requests", "lower"),
    ("running, mean", "requests", ""),
    ("budget used", "%", "higher"),
    ("first token, p50", "steps", "lower"),
    ("first token, p99", "steps", "lower"),
    ("between tokens, p50", "steps", "lower"),
    ("between tokens, p99", "steps", "lower"),
    ("finished", "requests", "higher"),
)


def _sums(run: RunTotals) -> dict[str, float | None]:
    reader = run.reader
    series = reader.series
    first = sorted(
        life.token_steps[0] - request.added + 1
        for life, request in zip(run.lives, reader.requests, strict=True)
        if life.token_steps
    )
    between = sorted(later - earlier for life in run.lives for earlier, later in pairwise(life.token_steps))
    computed = sum(life.computed for life in run.lives)
    return {
        "steps": reader.num_steps,
        "steps with rows": run.busy_steps,
        "computed": computed,
        "recomputed": sum(life.recomputed for life in run.lives),
        "output": sum(len(request.tokens) for request in reader.requests),
        "preemptions": sum(len(decision.preempted) for decision in run.decisions),
        "evictions": len(reader.events("evict")),
        "prefix hits": sum(request.num_cached_tokens for request in reader.requests),
        "found on resume": run.found_again,
        "most waiting": max(series.waiting, default=0),
        "running, mean": round(sum(series.running) / run.busy_steps, 2) if run.busy_steps else 0,
        "budget used": round(100 * computed / run.budget_offered, 1) if run.budget_offered else None,
        "first token, p50": percentile_or_none(first, 50),
        "first token, p99": percentile_or_none(first, 99),
        "between tokens, p50": percentile_or_none(between, 50),
        "between tokens, p99": percentile_or_none(between, 99),
        "finished": sum(request.finish_reason in ("stop", "length") for request in reader.requests),
    }


def _times(run: RunTotals) -> dict[str, float | None]:
    """Times of a run with a wall clock, in milliseconds."""
    series, requests = run.reader.series, run.reader.requests
    ends = [begin + duration for begin, duration in zip(series.time_s, series.duration_s, strict=True)]
    first, between = [], []
    for life, request in zip(run.lives, requests, strict=True):
        if life.token_steps:
            first.append(1e3 * (ends[life.token_steps[0]] - request.added_s))
        between += [1e3 * (ends[later] - ends[earlier]) for earlier, later in pairwise(life.token_steps)]
    first.sort()
    between.sort()
    rounded = {
        "whole run": 1e3 * run.reader.duration_s,
        "TTFT, p50": percentile_or_none(first, 50),
        "TTFT, p99": percentile_or_none(first, 99),
        "ITL, p50": percentile_or_none(between, 50),
        "ITL, p99": percentile_or_none(between, 99),
    }
    return {name: None if value is None else round(value, 3) for name, value in rounded.items()}
