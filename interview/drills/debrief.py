"""Figures of a drill that is over: yesterday, today and with the fix, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from interview.drills.drill import Drill
from interview.drills.figures import FIGURES, shown
from interview.drills.score import CHANGED, LATE, evidence_of

Event = dict[str, Any]


class Line(NamedTuple):
    """A figure in every run."""

    figure: str
    says: str
    values: tuple[str, ...]


def runs_of(events: Iterable[Event]) -> dict[str, dict[str, float]]:
    """Return the runs of a session that have figures, by name. Of several fixes, the one that met the objective counts.

    An interview knows no figures of a fix.
    """
    figures: dict[str, dict[str, float]] = {}
    is_met = False
    for event in events:
        name = {"healthy": "yesterday", "faulty": "today", "fix": "with the fix"}.get(event["event"])
        if name is None or "figures" not in event or (event["event"] == "fix" and is_met):
            continue
        figures[name] = event["figures"]
        is_met = event["event"] == "fix" and event["is_met"]
    return figures


def compare(runs: dict[str, dict[str, float]], figures: Iterable[str]) -> list[Line]:
    """Return a line per figure, with its value in each run."""
    return [
        Line(name, FIGURES[name].says, tuple(shown(name, run[name]) for run in runs.values()))
        for name in figures
    ]


def named(figures: Iterable[str], between: str = ", ") -> str:
    """Return the names of figures for a reader."""
    return between.join(FIGURES[name].says for name in figures)


def in_words(line: Line, runs: Iterable[str]) -> str:
    """Return a line as a phrase."""
    return f"{line.says}: " + ", ".join(
        f"{name} {value}" for name, value in zip(runs, line.values, strict=True)
    )


def lost(drill: Drill, events: Iterable[Event]) -> list[str]:
    """Return for cause and evidence why points were lost, and for a right fix why it earned some unseen."""
    looked, guesses, has_worked, is_late, is_unseen = [], [], False, False, False
    for event in events:
        if event["event"] == "look":
            looked.append(event["name"])
        elif event["event"] == "fix":
            has_worked |= event["is_met"]
            is_unseen |= event.get("is_right", False) and not event["is_met"]
        elif event["event"] == "hypothesis":
            guesses.append(event)
            is_late = has_worked
    _, missing = evidence_of(drill, looked, guesses[-1]["evidence"] if guesses else [])
    late = []
    if is_late:
        late = [f"cause: {LATE} points, because it was stated after a fix had worked"]
    elif guesses and guesses[-1]["cause"] == drill.cause != guesses[0]["cause"]:
        late = [f"cause: {CHANGED} points, because the first statement was another one"]
    unseen = ["fix: a right one, though the objective stayed missed: this machine was busy"] * (
        is_unseen and not has_worked
    )
    return late + ([f"evidence: {missing}"] if missing else []) + unseen
