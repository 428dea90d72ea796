"""E37: prompt lookup by hand: which drafts an n-gram drafter proposes for a list of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Drafts:
    """What would be proposed behind the last token."""

    drafts: Annotated[list[int], "token ids"]
    num_drafts: Annotated[int, "drafts"]
    looked_up: Annotated[int, "tokens"]
    """Length of the ending that was found earlier; 0: none, and nothing is proposed."""


@experiment("E37", megabytes=2500)
def lookup(
    ctx: Context,
    *,
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=10**6)]], Field(min_length=1, max_length=5000)] = (
        5,
        6,
        7,
        8,
        9,
        5,
        6,
        7,
    ),
    shortest: Annotated[int, Field(ge=1, le=20)] = 2,
    longest: Annotated[int, Field(ge=1, le=20)] = 5,
    k: Annotated[int, Field(ge=1, le=16)] = 3,
) -> Drafts:
    """Run the engine's n-gram drafter on one sequence: the longest ending that occurred before, its last place."""
    import numpy as np

    from engine.spec.ngram import continuation

    text = np.array(tokens, np.int32)
    found = continuation(text, shortest, longest, k)
    size = next((n for n in range(longest, shortest - 1, -1) if continuation(text, n, n, 1)), 0)
    return Drafts(found, len(found), size)
