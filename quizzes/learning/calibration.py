"""Calibration: confidence against outcomes, and intervals against true values.

Accuracy is shown beside the Brier score: on open questions, wrong answers with a confidence of 1 % also score low.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from quizzes.learning import grouped
from quizzes.state import Attempt, IntervalForecast, Vote

LEAST = 10
"""Minimum forecasts of a bin for showing its numbers."""

_MARK_VALUE = {"hit": 1.0, "partial": 0.5, "miss": 0.0, "contradicted": 0.0}


@dataclass(frozen=True)
class Forecast:
    """A confidence in percent and its outcome."""

    confidence: int
    correct: bool


@dataclass(frozen=True)
class Bin:
    """Forecasts of similar confidence."""

    lo: int
    """Lower end in percent; the bin ends at lo + 9."""
    n: int
    said: float
    """Mean confidence, 0 to 1."""
    was: float
    """Share that was right."""


@dataclass(frozen=True)
class Intervals:
    """Intervals of one probability level."""

    level: float
    n: int
    hits: int
    """Number that contain the truth."""
    log_width: float | None
    """Mean of log10(hi / lo) over intervals with positive ends: their width. None without any."""
    widen: float | None
    """Factor on the half-width that would have reached the level; None with fewer than LEAST."""

    @property
    def hit_rate(self) -> float:
        return self.hits / self.n


@dataclass(frozen=True)
class Calibration:
    """Calibration over all answers and votes with a confidence."""

    n: int
    said: float
    was: float
    brier: float
    """Mean of (confidence - right)²: 0 is perfect, always answering 50 % scores 0.25."""
    bins: tuple[Bin, ...]
    """Bins with at least LEAST forecasts."""
    intervals: tuple[Intervals, ...]


@dataclass(frozen=True)
class OwnMarks:
    """A learner's marks of their own prose against the probes of the same points."""

    n: int
    """Number of points with both."""
    over: float
    """Mean of own mark minus probe, -1 to 1: above 0, the learner marks too kindly."""


def own_marks(attempts: Iterable[Attempt]) -> OwnMarks | None:
    """Compare own marks with probes. None below LEAST points."""
    gaps = []
    for attempt in attempts:
        by_point: dict[str, dict[str, float]] = {}
        for mark in attempt.marks:
            if mark.by in ("self", "probe") and mark.verdict != "unsure":
                by_point.setdefault(mark.keypoint_id, {})[mark.by] = _MARK_VALUE[mark.verdict]
        gaps += [marks["self"] - marks["probe"] for marks in by_point.values() if len(marks) == 2]
    return OwnMarks(len(gaps), math.fsum(gaps) / len(gaps)) if len(gaps) >= LEAST else None


def brier_score(forecasts: Iterable[Forecast]) -> float | None:
    """Return the mean squared distance between confidence and outcome; None without forecasts."""
    losses = [(forecast.confidence / 100 - forecast.correct) ** 2 for forecast in forecasts]
    return math.fsum(losses) / len(losses) if losses else None


def calibration(attempts: Iterable[Attempt], votes: Iterable[Vote] = ()) -> Calibration | None:
    """Compute the calibration; None if no scored answer has a confidence."""
    attempts = list(attempts)
    forecasts = forecasts_of(attempts, votes)
    brier = brier_score(forecasts)
    if brier is None:
        return None
    by_bin = grouped(forecasts, lambda forecast: min(forecast.confidence, 99) // 10 * 10)
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
    """Return the forecasts of scored answers and of votes on decided claims."""
    answered = [
        Forecast(attempt.confidence, attempt.correct)
        for attempt in attempts
        if attempt.scored and attempt.confidence is not None
    ]
    return answered + [
        Forecast(vote.confidence, vote.vote == vote.verdict)
        for vote in votes
        if vote.verdict is not None and vote.confidence is not None
    ]


def intervals(forecasts: Iterable[IntervalForecast]) -> tuple[Intervals, ...]:
    """Group intervals by level. Forecasts without a known truth do not count."""
    known = [forecast for forecast in forecasts if forecast.truth is not None]
    by_level = grouped(known, lambda forecast: forecast.level)
    return tuple(_intervals(level, of_level) for level, of_level in sorted(by_level.items()))


def _bin(lo: int, forecasts: list[Forecast]) -> Bin:
    n = len(forecasts)
    said = math.fsum(forecast.confidence / 100 for forecast in forecasts) / n
    return Bin(lo, n, said, sum(forecast.correct for forecast in forecasts) / n)


def _intervals(level: float, forecasts: list[IntervalForecast]) -> Intervals:
    widths = [math.log10(f.hi / f.lo) for f in forecasts if 0 < f.lo <= f.hi < math.inf]
    return Intervals(
        level=level,
        n=len(forecasts),
        hits=sum(f.lo <= (f.truth or 0.0) <= f.hi for f in forecasts),
        log_width=math.fsum(widths) / len(widths) if widths else None,
        widen=_widening(level, forecasts) if len(forecasts) >= LEAST else None,
    )


def _widening(level: float, forecasts: list[IntervalForecast]) -> float | None:
    """Return the factor on the half-width with which the share `level` would have contained the truth."""
    needed = sorted(map(_distance, forecasts))
    factor = needed[min(math.ceil(level * len(needed)), len(needed)) - 1]
    return factor if math.isfinite(factor) else None


def _distance(forecast: IntervalForecast) -> float:
    """Return the distance from the middle to the truth, in half-widths."""
    half = (forecast.hi - forecast.lo) / 2
    away = abs((forecast.truth or 0.0) - (forecast.hi + forecast.lo) / 2)
    return away / half if half > 0 else (0.0 if away == 0 else math.inf)
