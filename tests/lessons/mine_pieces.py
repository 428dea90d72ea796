"""Pieces for the tests of `prep mine`: the reference solutions, where lessons exist, else stand-ins."""

from __future__ import annotations

from functools import cache

from lessons.mine.pieces import SEAMS, Pieces, load_pieces
from lessons.mine.workspace import reference
from tests.lessons.mine_solutions import SOURCES


@cache
def sources() -> dict[str, str]:
    """Return exercise -> source of every piece."""
    exercises = [exercise for seam in SEAMS for exercise, _ in seam.exercises]
    found = {exercise: reference(exercise) or SOURCES.get(exercise) for exercise in exercises}
    return {exercise: text for exercise, text in found.items() if text is not None}


def pieces(*exercises: str, **extra: str) -> Pieces:
    """Return the pieces of these exercises, of all without arguments. extra: ex_10_1="source to append"."""
    chosen = {name: sources()[name] for name in (exercises or sources())}
    for name, text in extra.items():
        chosen[name.removeprefix("ex_").replace("_", ".")] += "\n" + text
    return load_pieces(chosen, reference=sources().get)
