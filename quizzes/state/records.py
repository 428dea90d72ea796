"""Records of facts, their keys, and their conversion to rows. A record never changes: a correction is another record.

Times are aware, in UTC and whole milliseconds, so that the file returns them unchanged. Keys are ULIDs
(https://github.com/ulid/spec): 48 bits of milliseconds and 80 random bits in base 32, which sort by creation time.
"""

import datetime as dt
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, TypeVar

Grader = Literal["exact", "band", "experiment", "tests", "probe", "self", "judge"]
KeypointVerdict = Literal["hit", "partial", "miss", "contradicted", "unsure"]
Marker = Literal["self", "judge", "probe", "lint"]
SESSION_KINDS = ("quiz", "review", "placement", "exam", "claims", "mock", "drill", "lab", "lesson")


ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ID_LENGTH = 26
_last_number = 0


def new_id(milliseconds: int | None = None) -> str:
    """Return a key for the current time. Later calls in the same process return greater keys."""
    global _last_number
    now = time.time_ns() // 1_000_000 if milliseconds is None else milliseconds
    number = (now << 80) | int.from_bytes(os.urandom(10), "big")
    if milliseconds is None:
        number = max(number, _last_number + 1)  # the same millisecond, or a clock that was set back
        _last_number = number
    return "".join(ALPHABET[number >> 5 * digit & 31] for digit in reversed(range(ID_LENGTH)))


def is_id(text: object) -> bool:
    return isinstance(text, str) and len(text) == ID_LENGTH and set(text) <= set(ALPHABET)


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
class Vote:
    """The learner's vote on a claim, given before its test runs."""

    claim_id: str
    vote: str
    """confirmed, refuted, depends or outdated."""
    confidence: int | None = None
    verdict: str | None = None
    """Verdict of the test; None before it ran."""
    at: dt.datetime = field(default_factory=utc_now)
    id: str = field(default_factory=new_id)


JSON_COLUMNS = frozenset({"spec", "answer", "detail", "args", "result"})
TIME_COLUMNS = frozenset({"at", "started", "ended"})
Record = TypeVar("Record")


def table_of(kind: type) -> str:
    """Return the table of a kind of record: KeypointMark -> keypoint_mark."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", kind.__name__).lower()


def time_text(time: dt.datetime) -> str:
    """Return ISO 8601 in UTC with milliseconds, which sorts as text in order of time."""
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone; use an aware time in UTC")
    return time.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_ENCODE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(JSON_COLUMNS, partial(json.dumps, sort_keys=True, allow_nan=False)),
    **dict.fromkeys(TIME_COLUMNS, time_text),
    **dict.fromkeys(("correct", "scored"), int),
}
_DECODE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(JSON_COLUMNS, json.loads),
    **dict.fromkeys(TIME_COLUMNS, dt.datetime.fromisoformat),
    **dict.fromkeys(("correct", "scored"), bool),
}


def to_row(record: Any, columns: Iterable[str], **more: Any) -> dict[str, Any]:
    """Return column -> value for the file. more: columns that are not fields of the record."""
    row = {name: getattr(record, name) for name in columns if name not in more}
    return {**row, **{name: _ENCODE[name](row[name]) for name in row.keys() & _ENCODE}, **more}


def to_record(kind: type[Record], row: sqlite3.Row, **more: Any) -> Record:
    """Return the record of a row. more: fields from other tables."""
    names = {field.name for field in fields(kind)} & set(row.keys())  # type: ignore[arg-type]
    decoded = {name: _DECODE[name](row[name]) for name in names & _DECODE.keys() if row[name] is not None}
    return kind(**{**{name: row[name] for name in names}, **decoded, **more})


def settings_from(changes: list[tuple[str, str]]) -> Settings:
    """Return the settings after (name, JSON) changes in order. Unknown names, from later versions, are ignored."""
    values = {name: json.loads(value) for name, value in changes if name in Settings.__dataclass_fields__}
    if values.get("interview_date"):
        values["interview_date"] = dt.date.fromisoformat(values["interview_date"])
    return Settings(**values)
