"""Contents of a report, as plain values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from interview.mock.session import SessionError, folder
from prep_common.paths import write_atomically

FORMAT = 1


@dataclass(frozen=True)
class AxisRow:
    """One axis: machine, own rating and judge side by side; None where there is no mark."""

    axis: str
    title: str
    machine: int | None
    own: int | None
    judge: int | None
    observations: int
    anchor: str
    """The rubric's words for the mark; "" if it was not observed."""
    evidence: list[str]


@dataclass(frozen=True)
class PointRow:
    """A key point of prose."""

    say: str
    own: str
    """The candidate's own mark."""
    probe: bool | None
    judge: str
    quote: str
    """The nearest sentence of the answer, which may say the opposite."""
    doubt: str = ""
    """Reason for which the own mark does not count, "" if it does."""


@dataclass(frozen=True)
class StepRow:
    """One question with what came of it."""

    key: str
    stage: str
    asked: str
    why: str
    """Reason for a follow-up."""
    minutes: float
    seconds: float
    answer: str
    clarified: list[dict[str, str]]
    points: list[PointRow]
    rows: list[list[Any]]
    """[what, said, measured, right]."""
    ran: str
    """The experiment with its arguments, as a command."""
    explain: str
    five: str
    evidence: list[str]
    value: float | None
    learn: list[str]
    post_mortem: str = ""
    """Markdown about an incident, with lines for the candidate to write; "" for other questions."""


@dataclass(frozen=True)
class Report:
    """A session, assessed."""

    id: str
    title: str
    role: str
    level: str
    minutes: int
    minutes_used: float
    started: str
    finished: bool
    recommendation: str
    axes: list[AxisRow]
    steps: list[StepRow]
    strengths: list[str]
    gaps: list[dict[str, Any]]
    """{"step", "why", "learn"}."""
    calibration: dict[str, Any]
    """{"intervals", "held", "sure", "sure_and_wrong"}."""
    unreached: list[str]
    cards: list[str]
    """Questions of the bank that missed steps name; `prep review` asks them from the next day on."""
    next_session: str
    trend: dict[str, list[int | None]]
    """Axis -> marks of all sessions until this one, in their order."""
    pauses: int = 0
    drawings: int = 0
    reason: str = ""
    """Axes that the recommendation rests on, and what a better one needs."""
    format: int = field(default=FORMAT)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def path_of(session_id: str) -> Path:
    return folder() / f"{session_id}.report.json"


def save(report: Report) -> Path:
    """Write the report beside the session's log. Raises OSError."""
    path = path_of(report.id)
    write_atomically(path, json.dumps(report.to_json(), indent=1))
    return path


def load(session_id: str) -> Report | None:
    """Return a saved report; None if there is none. Raises SessionError."""
    path = path_of(session_id)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("format") != FORMAT:
            raise SessionError(
                f"the report {path} has format {data.get('format')}; this version reads {FORMAT}",
                "update prep, or use the version that wrote it",
            )
        steps = [StepRow(**{**s, "points": [PointRow(**p) for p in s["points"]]}) for s in data["steps"]]
        return Report(**{**data, "axes": [AxisRow(**axis) for axis in data["axes"]], "steps": steps})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SessionError(f"{path} cannot be read: {error}", "delete it; the report is made again") from None
