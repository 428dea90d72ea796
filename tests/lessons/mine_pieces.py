"""Pieces for the tests of `prep mine`: the reference solutions."""

from __future__ import annotations

from functools import cache

from lessons.mine.pieces import SEAMS, Pieces, load_pieces
from lessons.mine.workspace import reference


@cache
def sources() -> dict[str, str]:
    """Return exercise -> source of every piece."""
    exercises = [exercise for seam in SEAMS for exercise, _ in seam.exercises]
    return {exercise: text for exercise in exercises if (text := reference(exercise)) is not None}


def pieces(*exercises: str, **extra: str) -> Pieces:
    """Return the pieces of these exercises, of all without arguments. extra: ex_10_1="source to append"."""
    chosen = {name: sources()[name] for name in (exercises or sources())}
    for name, text in extra.items():
        chosen[name.removeprefix("ex_").replace("_", ".")] += "\n" + text
    return load_pieces(chosen, reference=sources().get)
