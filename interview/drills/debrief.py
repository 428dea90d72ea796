"""Figures of a drill that is over: yesterday, today and with the fix, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from interview.drills.figures import FIGURES, shown

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
    found: dict[str, dict[str, float]] = {}
    is_met = False
    for event in events:
        name = {"healthy": "yesterday", "faulty": "today", "fix": "with the fix"}.get(event["event"])
        if name is None or "figures" not in event or (event["event"] == "fix" and is_met):
            continue
        found[name] = event["figures"]
        is_met = event["event"] == "fix" and event["is_met"]
    return found


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
