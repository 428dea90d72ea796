"""Calls of a drafter in the process that holds it: the lab ngram-drafter."""

from __future__ import annotations

from time import perf_counter
from typing import Any

STEPS = 40


def replay(
    make: Any, min_n: int, max_n: int, first: bool, pieces: list[list[int]], k: int
) -> list[list[int]]:
    """Extend a new drafter by each piece; return what it proposes after each of them."""
    drafter = make(min_n, max_n, first)
    found = []
    for piece in pieces:
        drafter.extend(piece)
        found.append(drafter.propose(k))
    return found


def step_seconds(make: Any, context: str, length: int) -> float:
    """Return the shortest of STEPS steps after a context of `length` tokens: three tokens more, and a proposal.

    context: "new", every token is new. "common ending": a frequent pair of tokens after a token that is new.
    """
    drafter = make(2, 4, False)
    text = [token for at in range(length // 3 + STEPS) for token in _three(context, at)]
    drafter.extend(text[:length])
    best = float("inf")
    for step in range(STEPS):
        piece = text[length + 3 * step : length + 3 * step + 3]
        began = perf_counter()
        drafter.extend(piece)
        drafter.propose(5)
        best = min(best, perf_counter() - began)
    return best


def _three(context: str, at: int) -> tuple[int, int, int]:
    return (3 * at, 3 * at + 1, 3 * at + 2) if context == "new" else (at + 2, 0, 1)
