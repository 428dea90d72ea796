"""Sources of pieces: the learner's notebooks, and the reference solutions.

`current()` returns the pieces that the adapters of this package use: those of an enclosing `using(pieces)`, else those
of the learner's notebooks. So `lessons.mine.scheduler:MineScheduler` works as a path wherever the engine takes one:
`pytest tests/contracts --impl`, `scheduler_cls`, forks in the debugger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from lessons.course.lesson_files import UnknownLesson, find_lab, solution, stub
from lessons.course.notebook_build import digest
from lessons.course.progress import exercise_progress
from lessons.course.workspace import WorkspaceError, lab_path, lab_source, learner_sources
from lessons.mine.pieces import SEAMS, Pieces, is_lab, load_pieces, reference_pieces

_current: ContextVar[Pieces | None] = ContextVar("pieces", default=None)


def learner_pieces() -> Pieces:
    """Return the learner's pieces whose checks passed; the others are ours."""
    progress = exercise_progress()

    def why_not(exercise: str, source: str) -> str:
        done, check = progress.get(exercise), check_command(exercise)
        if done is None or not done.passed:
            return f"has not passed its checks: {check}"
        if digest(source) not in done.digests:
            return f"changed since it passed: {check}"
        return ""

    return load_pieces(learner_sources() | _lab_sources(), why_not, reference)


def check_command(exercise: str) -> str:
    """Return the command that checks an exercise or a lab."""
    return f"prep {'lab' if is_lab(exercise) else 'lesson'} check {exercise}"


def _lab_sources() -> dict[str, str]:
    """Return lab -> the learner's file, for labs behind a seam that the learner has begun."""
    found = {}
    for lab in (find_lab(name) for seam in SEAMS for name, _ in seam.exercises if is_lab(name)):
        with suppress(WorkspaceError):
            if (
                lab_path(lab).exists()
                and (source := lab_source(lab)).strip() != stub(lab, lab.number).strip()
            ):
                found[lab.number] = source
    return found


def solution_pieces() -> Pieces:
    """Return the reference solutions of all lessons as pieces."""
    return reference_pieces(reference)


def reference(exercise: str) -> str | None:
    """Return the source of an exercise's solution; None if the lesson does not exist yet."""
    try:
        return solution(exercise)
    except (UnknownLesson, KeyError):
        return None


@contextmanager
def using(pieces: Pieces) -> Iterator[None]:
    """Make adapters that are created inside use these pieces."""
    token = _current.set(pieces)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Pieces:
    """Return the pieces for a new adapter."""
    return _current.get() or learner_pieces()
