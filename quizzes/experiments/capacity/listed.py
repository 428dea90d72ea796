"""How many things a text announces, and how many it lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

Labels = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=80)]], Field(min_length=1, max_length=100)
]


@dataclass(frozen=True)
class Listed:
    """Labels that differ only in case or spaces count once."""

    announced: Annotated[int, "entries"]
    listed: Annotated[int, "entries"]
    missing: Annotated[int, "entries"]
    """Announced but not there; negative: more than announced."""


@experiment()
def listed(
    ctx: Context,
    *,
    announced: Annotated[int, Field(ge=0, le=1000)] = 6,
    labels: Labels = ("rate", "lengths", "limits", "model", "card"),
) -> Listed:
    """Compare an announced number with what is there, before anything is worked out from it."""
    there = len({" ".join(label.lower().split()) for label in labels})
    return Listed(announced, there, announced - there)
