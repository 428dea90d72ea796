"""Lessons in the learner's state: predictions, checks, hints, solutions seen.

All functions raise StateError if the file cannot be read or written: the caller says so, and that nothing is saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lessons.course.lesson_files import Lesson, find_exercise
from lessons.course.notebook_build import digest
from quizzes.state import Attempt, Prediction, State

PREFIX = "lesson."
HINT_COST = 0.2
"""Points of an exercise that a hint costs."""


@dataclass
class ExerciseProgress:
    """One exercise so far."""

    passed: bool = False
    seen: bool = False
    """The solution was shown before it passed."""
    hints: int = 0
    tries: int = 0
    digests: set[str] = field(default_factory=set)
    """Fingerprints of the sources that passed."""


def exercise_progress() -> dict[str, ExerciseProgress]:
    """Return exercise id -> progress, for exercises that were tried or looked up."""
    found: dict[str, ExerciseProgress] = {}
    with State.open_to_read() as state:
        attempts = state.attempts()
    for attempt in attempts:
        if not attempt.question_id.startswith(PREFIX) or "event" not in attempt.detail:
            continue
        event = attempt.detail["event"]
        if event in ("race", "interview"):
            continue
        progress = found.setdefault(attempt.question_id.removeprefix(PREFIX), ExerciseProgress())
        if event == "hint":
            progress.hints = max(progress.hints, attempt.hints)
        elif event == "solution":
            progress.seen = progress.seen or not progress.passed
        else:
            progress.tries += 1
            if attempt.correct:
                progress.passed = True
                progress.digests.add(attempt.detail.get("digest", ""))
    return found


def passed() -> set[str]:
    """Return the exercises that the learner has solved."""
    return {name for name, progress in exercise_progress().items() if progress.passed}


def record_check(exercise: str, source: str, *, ok: bool, num_passed: int, num_checks: int) -> None:
    """Keep the result of a check. The first success earns the points that hints have left."""
    before = exercise_progress().get(exercise, ExerciseProgress())
    points = max(0.0, 1 - HINT_COST * before.hints) * ok * (not before.seen)
    _add(
        exercise,
        {"passed": num_passed, "of": num_checks},
        correct=ok,
        points=points,
        hints=before.hints,
        rating=None if not ok else 1 if before.seen else 2 if before.hints else 3,
        detail={"event": "check", "digest": digest(source)},
    )


def record_hint(exercise: str, number: int) -> None:
    _add(exercise, number, hints=number, detail={"event": "hint"})


def record_solution(exercise: str) -> None:
    """Keep that the solution was shown: the exercise's card is rated Again."""
    _add(exercise, None, rating=1, detail={"event": "solution"})


def record_race(lab: str, seed: int, ratio: float, source: str, more_is_better: bool = False) -> None:
    """Keep the result of a lab's race."""
    detail = {"event": "race", "seed": seed, "digest": digest(source), "more": more_is_better}
    _add(lab, ratio, detail=detail)


def record_interview(lab: str, marks: dict[str, float], minutes: float) -> None:
    """Keep the marks of a lab held as an interview."""
    _add(lab, marks, detail={"event": "interview", "minutes": minutes})


def events(lab: str, event: str) -> list[Attempt]:
    """Return what was kept of a lab's "race" or "interview", the oldest first."""
    with State.open_to_read() as state:
        found = state.attempts()
    return [each for each in found if each.question_id == PREFIX + lab and each.detail.get("event") == event]


def record_prediction(lesson: Lesson, name: str, answer: Any, confidence: int | None = None) -> None:
    """Commit a prediction before its run."""
    with State.open() as state:
        session = state.begin_session("lesson", {"lesson": lesson.number})
        question = f"{PREFIX}{lesson.number}.{name}"
        state.add(Prediction(session.id, question, 1, 0, answer, confidence))
        state.end_session(session.id)


def _add(
    exercise: str,
    answer: Any,
    *,
    correct: bool = False,
    points: float = 0.0,
    hints: int = 0,
    rating: int | None = None,
    detail: dict[str, Any],
) -> None:
    lesson, _ = find_exercise(exercise)
    with State.open() as state:
        session = state.begin_session("lesson", {"lesson": lesson.number})
        state.add(
            Attempt(
                session.id,
                PREFIX + exercise,
                1,
                0,
                answer,
                points,
                1.0,
                correct,
                "tests",
                scored=detail["event"] == "check",
                hints=hints,
                rating=rating,
                detail=detail,
            )
        )
        state.end_session(session.id)
