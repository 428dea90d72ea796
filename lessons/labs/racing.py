"""The result of a lab's race: rows of figures, and one ratio of the learner's part to ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from common.sandbox import Guest, Limits
from lessons.course.checking import MEGABYTES


@dataclass(frozen=True)
class Race:
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    ratio: float
    """The learner's figure over ours, from one run."""
    says: str
    """Meaning of the ratio, and whether more or less is better."""
    differs: str = ""
    """The first decision that differs from ours, one sentence; empty if none does."""


def first_difference(track: str, what: str, yours: Sequence[str], ours: Sequence[str]) -> str:
    """Return a sentence about the first place where two lists of decisions differ, or an empty string.

    what: name of a decision, such as "admission". Later ones differ because the states do.
    """
    for place, (your, our) in enumerate(zip_longest(yours, ours, fillvalue="none"), 1):
        if your != our:
            return f"{track}, {what} {place}: yours {your}, ours {our}"
    return ""


def racer(source: str, seconds: float = 60.0) -> Guest:
    """Return a process that holds one contestant's file, for a whole race."""
    return Guest({"learner.py": source}, limits=Limits(seconds=seconds, megabytes=MEGABYTES))
