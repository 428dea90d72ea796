"""Calls of a drafter in the process that holds it: the lab ngram-drafter."""

from __future__ import annotations

from typing import Any


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
