"""Does the learner know what they know? Confidence against outcomes, and intervals against truths.

Accuracy stands beside the score, never merged with it: on open questions a low Brier score alone can be had by being
wrong on purpose at 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from quizzes.state import Attempt, IntervalForecast, Vote

LEAST = 10
"""Forecasts of one bin below which its figures say nothing and are not shown."""

_MARK_VALUE = {"hit": 1.0, "partial": 0.5, "miss": 0.0, "contradicted": 0.0}


@dataclass(frozen=True)
class Forecast:
    """A confidence in per cent, and how it came out."""

    confidence: int
    correct: bool


@dataclass(frozen=True)
class Bin:
    """Forecasts of about the same confidence."""

    lo: int
    """Per cent; the bin goes up to lo + 9."""
    n: int
    said: float
    """Mean confidence, 0 to 1."""
    was: float
    """Part that was right."""


@dataclass(frozen=True)
class Intervals:
    """Intervals of one promised level."""

    level: float
    n: int
    hits: int
    """Held the truth."""
    log_width: float | None
    """Mean of log10(hi / lo) where both are positive: how much they say. None where none is."""
    widen: float | None
    """Times their half-width at which the promise would have been kept; None with fewer than LEAST."""

    @property
    def hit_rate(self) -> float:
        return self.hits / self.n


@dataclass(frozen=True)
class Calibration:
    """Of all answers and votes with a confidence."""

    n: int
    said: float
    was: float
    brier: float
    """Mean of (confidence - right)²: 0 is perfect, 0.25 is what always saying 50 % earns."""
    bins: tuple[Bin, ...]
    """Those with at least LEAST forecasts."""
    intervals: tuple[Intervals, ...]


@dataclass(frozen=True)
class OwnMarks:
    """Marks that a learner gave their own prose, beside what the probes of the same points showed."""

    n: int
    """Points that have both."""
    over: float
    """Mean of own mark minus probe, -1 to 1: above 0, the learner is kinder than the probes."""


def own_marks(attempts: Iterable[Attempt]) -> OwnMarks | None:
    """None below LEAST points."""
    gaps = []
    for attempt in attempts:
        by_point: dict[str, dict[str, float]] = {}
        for mark in attempt.marks:
            if mark.by in ("self", "probe") and mark.verdict != "unsure":
                by_point.setdefault(mark.keypoint_id, {})[mark.by] = _MARK_VALUE[mark.verdict]
        gaps += [marks["self"] - marks["probe"] for marks in by_point.values() if len(marks) == 2]
    return OwnMarks(len(gaps), math.fsum(gaps) / len(gaps)) if len(gaps) >= LEAST else None


def brier_score(forecasts: Iterable[Forecast]) -> float | None:
    """Mean squared distance between confidence and outcome; None without any."""
    losses = [(forecast.confidence / 100 - forecast.correct) ** 2 for forecast in forecasts]
    return math.fsum(losses) / len(losses) if losses else None


def calibration(attempts: Iterable[Attempt], votes: Iterable[Vote] = ()) -> Calibration | None:
    """None if nothing that was scored came with a confidence."""
    attempts = list(attempts)
    forecasts = forecasts_of(attempts, votes)
    brier = brier_score(forecasts)
    if brier is None:
        return None
    by_bin: dict[int, list[Forecast]] = {}
    for forecast in forecasts:
        by_bin.setdefault(min(forecast.confidence, 99) // 10 * 10, []).append(forecast)
    whole = _bin(0, forecasts)
    return Calibration(
        n=whole.n,
        said=whole.said,
        was=whole.was,
        brier=brier,
        bins=tuple(_bin(lo, by_bin[lo]) for lo in sorted(by_bin) if len(by_bin[lo]) >= LEAST),
        intervals=intervals(
            forecast for attempt in attempts if attempt.scored for forecast in attempt.intervals
        ),
    )


def forecasts_of(attempts: Iterable[Attempt], votes: Iterable[Vote] = ()) -> list[Forecast]:
    """Of scored answers, and of votes on claims that the court decided."""
    found = [
        Forecast(attempt.confidence, attempt.correct)
        for attempt in attempts
        if attempt.scored and attempt.confidence is not None
    ]
    return found + [
        Forecast(vote.confidence, vote.vote == vote.verdict)
        for vote in votes
        if vote.verdict is not None and vote.confidence is not None
    ]


def intervals(forecasts: Iterable[IntervalForecast]) -> tuple[Intervals, ...]:
    """By promised level. Forecasts whose truth is not known do not count."""
    by_level: dict[float, list[IntervalForecast]] = {}
    for forecast in forecasts:
        if forecast.truth is not None:
            by_level.setdefault(forecast.level, []).append(forecast)
    return tuple(_intervals(level, found) for level, found in sorted(by_level.items()))


def _bin(lo: int, forecasts: list[Forecast]) -> Bin:
    n = len(forecasts)
    said = math.fsum(forecast.confidence / 100 for forecast in forecasts) / n
    return Bin(lo, n, said, sum(forecast.correct for forecast in forecasts) / n)


def _intervals(level: float, found: list[IntervalForecast]) -> Intervals:
    widths = [math.log10(f.hi / f.lo) for f in found if 0 < f.lo <= f.hi < math.inf]
    return Intervals(
        level=level,
        n=len(found),
        hits=sum(f.lo <= (f.truth or 0.0) <= f.hi for f in found),
        log_width=math.fsum(widths) / len(widths) if widths else None,
        widen=_widening(level, found) if len(found) >= LEAST else None,
    )


def _widening(level: float, found: list[IntervalForecast]) -> float | None:
    """The factor on the half-width with which a part `level` of the intervals would have held the truth."""
    needed = sorted(_distance(forecast) for forecast in found)
    factor = needed[min(math.ceil(level * len(needed)), len(needed)) - 1]
    return factor if math.isfinite(factor) else None


def _distance(forecast: IntervalForecast) -> float:
    """From the middle to the truth, in half-widths."""
    half = (forecast.hi - forecast.lo) / 2
    away = abs((forecast.truth or 0.0) - (forecast.hi + forecast.lo) / 2)
    return away / half if half > 0 else (0.0 if away == 0 else math.inf)
