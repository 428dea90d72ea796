"""Conversion between records and rows."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from dataclasses import fields
from typing import Any, TypeVar

from quizzes.state.records import (
    Attempt,
    IntervalForecast,
    KeypointMark,
    Prediction,
    Run,
    Session,
    Settings,
    Vote,
)

Record = TypeVar("Record")

TABLE_OF = {
    Session: "session",
    Prediction: "prediction",
    Attempt: "attempt",
    KeypointMark: "keypoint_mark",
    IntervalForecast: "interval_forecast",
    Run: "run",
    Vote: "vote",
}
JSON_COLUMNS = frozenset({"spec", "answer", "detail", "args", "result"})
TIME_COLUMNS = frozenset({"at", "started", "ended"})
_FLAGS = {"correct", "scored"}


def time_text(time: dt.datetime) -> str:
    """Return ISO 8601 in UTC with milliseconds, which sorts as text in order of time."""
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone; use an aware time in UTC")
    return time.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_time(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def to_row(record: Any, columns: tuple[str, ...], **more: Any) -> dict[str, Any]:
    """Return column -> value for the file. more: columns that are not fields of the record."""
    row = {name: getattr(record, name) for name in columns if name not in more}
    for name in row:
        if name in JSON_COLUMNS:
            row[name] = json.dumps(row[name], sort_keys=True, allow_nan=False)
        elif name in TIME_COLUMNS:
            row[name] = time_text(row[name])
        elif name in _FLAGS:
            row[name] = int(row[name])
    return {**row, **more}


def to_record(kind: type[Record], row: sqlite3.Row, **more: Any) -> Record:
    """Return the record of a row. more: fields from other tables."""
    known = set(row.keys())
    values = {field.name: row[field.name] for field in fields(kind) if field.name in known}  # type: ignore[arg-type]
    for name, value in values.items():
        if value is None:
            continue
        if name in JSON_COLUMNS:
            values[name] = json.loads(value)
        elif name in TIME_COLUMNS:
            values[name] = to_time(value)
        elif name in _FLAGS:
            values[name] = bool(value)
    return kind(**{**values, **more})


def settings_from(changes: list[tuple[str, str]]) -> Settings:
    """Return the settings after (name, JSON) changes in order. Unknown names, from later versions, are ignored."""
    values = {name: json.loads(value) for name, value in changes if name in Settings.__dataclass_fields__}
    if values.get("interview_date"):
        values["interview_date"] = dt.date.fromisoformat(values["interview_date"])
    return Settings(**values)


def setting_value(value: Any) -> str:
    return json.dumps(value.isoformat() if isinstance(value, dt.date) else value)
