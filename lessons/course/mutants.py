"""Plausible wrong solutions of exercises, as diffs: each names the check that must catch it."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

from lessons.course.lesson_files import Lab, Lesson, solution
from quizzes.mutant_diffs import apply_diff

_HEADLINE = re.compile(r"^(?=\w[\w.-]* \w+: )", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    exercise: str
    check: str
    why: str
    source: str


def mutants(lesson: Lesson | Lab) -> list[Mutant]:
    """Return the wrong solutions of a lesson or a lab. Raises ValueError if a diff does not fit the solution."""
    text: str = importlib.import_module(f"lessons.{lesson.name}.mutants").MUTANTS
    found = []
    for entry in _HEADLINE.split(text)[1:]:
        headline, _, diff = entry.partition("\n")
        target, _, why = headline.partition(": ")
        exercise, check = target.split()
        if exercise not in lesson.exercises:  # of the same lab in another language
            continue
        found.append(Mutant(exercise, check, why, apply_diff(solution(exercise), diff, headline)))
    return found
