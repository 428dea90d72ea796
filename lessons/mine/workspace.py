"""Where pieces come from: the learner's notebooks, and the reference solutions."""

from __future__ import annotations

from lessons.course.lesson_files import UnknownLesson, solution
from lessons.course.progress import exercise_progress
from lessons.course.workspace import digest, learner_sources
from lessons.mine.pieces import Pieces, load_pieces, reference_pieces


def learner_pieces() -> Pieces:
    """Return the learner's pieces whose checks passed; the others are ours."""
    progress = exercise_progress()

    def why_not(exercise: str, source: str) -> str:
        done = progress.get(exercise)
        if done is None or not done.passed:
            return f"has not passed its checks: prep lesson check {exercise}"
        if digest(source) not in done.digests:
            return f"changed since it passed: prep lesson check {exercise}"
        return ""

    return load_pieces(learner_sources(), why_not, reference)


def solution_pieces() -> Pieces:
    """Return the reference solutions of all lessons as pieces."""
    return reference_pieces(reference)


def reference(exercise: str) -> str | None:
    """Return the source of an exercise's solution; None if the lesson does not exist yet."""
    try:
        return solution(exercise)
    except (UnknownLesson, KeyError):
        return None
