"""Records of facts. A record never changes: a correction is another record.

Times are aware, in UTC and whole milliseconds, so that the file returns them unchanged.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any, Literal

from quizzes.state.ulid import new_id

Grader = Literal["exact", "band", "experiment", "tests", "probe", "self", "judge"]
KeypointVerdict = Literal["hit", "partial", "miss", "contradicted", "unsure"]
Marker = Literal["self", "judge", "probe", "lint"]
SESSION_KINDS = ("quiz", "review", "placement", "exam", "claims", "mock", "drill", "lab", "lesson")


def utc_now() -> dt.datetime:
    """Return the current time in UTC and whole milliseconds, the precision of the file."""
    now = dt.datetime.now(dt.UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


@dataclass(frozen=True)
class Settings:
    """The learner's settings. Each change is a fact; the latest value of each field counts."""

    role: str | None = None
    """A key of topics.ROLES."""
    level: str | None = None
    """junior, mid, senior or staff."""
    interview_date: dt.date | None = None
    hours_per_week: float = 5.0

    def __post_init__(self) -> None:
        for name in ("role", "level"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a word, not {value!r}")
        if self.interview_date is not None and not isinstance(self.interview_date, dt.date):
            raise ValueError(f"interview_date must be a date, not {self.interview_date!r}")
        if not isinstance(self.hours_per_week, int | float) or not 0 < self.hours_per_week <= 168:
            raise ValueError(f"hours_per_week must be a number up to 168, not {self.hours_per_week!r}")


@dataclass(frozen=True)
class Session:
    """One sitting."""

    kind: str
    """One of SESSION_KINDS."""
    spec: dict[str, Any] = field(default_factory=dict)
    """Options (topic, seed, ids ...), enough to continue it later. JSON values."""
    bank_rev: str = ""
    """Revision of the bank."""
    app_version: str = ""
    host: str = ""
    started: dt.datetime = field(default_factory=utc_now)
    ended: dt.datetime | None = None
    """None while it runs, or if it was interrupted."""
    id: str = field(default_factory=new_id)


@dataclass(frozen=True)
class Prediction:
    """An answer that was committed before the experiment ran."""

    session_id: str
    question_id: str
    revision: int
    seed: int
    answer: Any
    confidence: int | None = None
    at: dt.datetime = field(default_factory=utc_now)
    id: str = field(default_factory=new_id)


@dataclass(frozen=True)
class KeypointMark:
    """Whether a free-text answer made a key point, by one marker."""

    keypoint_id: str
    verdict: KeypointVerdict
    by: Marker
    quote: str | None = None
    id: str = field(default_factory=new_id)


@dataclass(frozen=True)
class IntervalForecast:
    """An interval that should contain the truth with probability `level`."""

    answer_id: str
    lo: float
    hi: float
    truth: float | None
    level: float = 0.8
    id: str = field(default_factory=new_id)


@dataclass(frozen=True)
class Attempt:
    """A graded answer to one question."""

    session_id: str
    question_id: str
    revision: int
    seed: int
    answer: Any
    """JSON value."""
    points: float
    """Earned, after hints."""
    points_max: float
    correct: bool
    """Whether all parts were right, with or without hints; a confidence refers to this."""
    grader: Grader
    scored: bool = True
    """False if it could not be graded (inconclusive, limit hit): saved, but not counted."""
    elapsed_ms: int = 0
    confidence: int | None = None
    """Confidence in percent, 1 to 99, that all parts are right."""
    hints: int = 0
    """Number of hints shown."""
    mistake_id: str | None = None
    rating: int | None = None
    """1 Again, 2 Hard, 3 Good, 4 Easy (`learning.review.rate`); None leaves the question's card alone."""
    prediction_id: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    """Further values for screens. JSON values."""
    marks: tuple[KeypointMark, ...] = ()
    intervals: tuple[IntervalForecast, ...] = ()
    at: dt.datetime = field(default_factory=utc_now)
    id: str = field(default_factory=new_id)


@dataclass(frozen=True)
class Run:
    """A run of an experiment and its result."""

    experiment: str
    args: dict[str, Any]
    args_hash: str
    code_rev: str
    """Hash of the sources."""
    result: Any
    wall_s: float | None = None
    """Wall time in seconds."""
    machine: str = ""
    trace_path: str | None = None
    verdict: str | None = None
    at: dt.datetime = field(default_factory=utc_now)
    id: str = field(default_factory=new_id)


@dataclass(frozen=True)
class Vote:
    """The learner's vote on a claim, given before its test runs."""

    claim_id: str
    vote: str
    """confirmed, refuted or depends."""
    confidence: int | None = None
    verdict: str | None = None
    """Verdict of the test; None before it ran."""
    at: dt.datetime = field(default_factory=utc_now)
    id: str = field(default_factory=new_id)
