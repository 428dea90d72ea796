"""Marks of an optional judge, in a column of their own. It counts only if it passed its canaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from interview.mock.session import Session
from interview.mock.talk import Talk
from quizzes.free_text.scoring import VALUE, Mark

if TYPE_CHECKING:
    from quizzes.free_text.settings import JudgeSettings

Verdicts = Mapping[str, Mapping[str, Mark]]
"""Step -> key point -> verdict."""


def configured() -> JudgeSettings | None:
    """Return the judge whose marks count; None without one. Raises JudgeError."""
    from quizzes.free_text.settings import load

    settings = load()
    return settings if settings is not None and settings.counts else None


def judge(session: Session, settings: JudgeSettings) -> dict[str, dict[str, Mark]]:
    """Return the judge's verdicts on all prose of a session. Raises JudgeError."""
    from quizzes.free_text.judge import ask_endpoint, mark

    drawn = {entry.scenario.id: entry for entry in session.scenarios}
    marks: dict[str, dict[str, Mark]] = {}
    for asked in session.talk.asked:
        text = asked.replies.get("text", "")
        if asked.form != "prose" or not text:
            continue
        scenario, _, name = asked.key.partition("/")
        points = drawn[scenario].key_points(drawn[scenario].scenario.step(name))
        verdicts = mark(ask_endpoint(settings.endpoint), asked.say, points, text)
        marks[asked.key] = {verdict.keypoint: verdict.verdict for verdict in verdicts}
    return marks


def axis_values(talk: Talk, judged: Verdicts) -> dict[str, int]:
    """Return the judge's mark per axis: the mean over the key points of the prose on that axis, from 1 to 5."""
    values: dict[str, list[float]] = {}
    for asked in talk.asked:
        marks = judged.get(asked.key)
        if not marks:
            continue
        share = sum(VALUE[mark] for mark in marks.values()) / len(marks)
        for axis in asked.axes:
            if axis != "communication":
                values.setdefault(axis, []).append(1 + 4 * share)
    return {axis: round(sum(shares) / len(shares)) for axis, shares in values.items()}
