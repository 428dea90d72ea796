"""Plausible wrong solutions of exercises, as diffs: each names the check that must catch it."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

from lessons.course.lesson_files import Lesson, solution

_HEADLINE = re.compile(r"^(?=\d\d\.\d \w+: )", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    exercise: str
    check: str
    why: str
    source: str


def mutants(lesson: Lesson) -> list[Mutant]:
    """Return the wrong solutions of a lesson. Raises ValueError if a diff does not fit the solution."""
    text: str = importlib.import_module(f"lessons.{lesson.name}.mutants").MUTANTS
    found = []
    for entry in _HEADLINE.split(text)[1:]:
        headline, _, diff = entry.partition("\n")
        target, _, why = headline.partition(": ")
        exercise, check = target.split()
        found.append(Mutant(exercise, check, why, apply_diff(solution(exercise), diff, headline)))
    return found


def apply_diff(source: str, diff: str, name: str) -> str:
    """Return the source after a diff whose hunks, separated by "@@", each fit in one place. Raises ValueError."""
    for hunk in diff.split("@@\n"):
        lines = [line if line.strip() else " \n" for line in hunk.splitlines(keepends=True)]
        old = "".join(line[1:] for line in lines if line[0] in " -")
        if source.count(old) != 1:
            raise ValueError(f"{name}: {old!r} occurs {source.count(old)} times in the solution")
        source = source.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
    return source
