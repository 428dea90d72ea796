"""A look per request, the same on all pages: a colour, and a number where living requests share the colour.

A request gets its colour when it arrives, from those that no living request has: the one that was given out the
longest ago. With more living requests than colours, it gets the one with the fewest living requests, and the smallest
number that none of these has: the first is plain, the second "2". So no two requests that live in the same step look
alike. Only the past decides, so a look never changes while a run grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

NUM_COLOURS = 7
"""Length of `colours.REQUESTS`."""


def assign(lives: Iterable[tuple[int, int | None]]) -> list[int]:
    """Return a look per request. lives: (step of arrival, step of the end or None), in order of arrival. A request
    lives in both steps."""
    users: list[set[int]] = [set() for _ in range(NUM_COLOURS)]
    given = [-1] * NUM_COLOURS
    ends: list[tuple[int, int]] = []
    looks: list[int] = []
    for number, (added, ended) in enumerate(lives):
        while ends and ends[0][0] < added:
            number_of, colour = divmod(heappop(ends)[1], NUM_COLOURS)
            users[colour].discard(number_of)
        colour = min(range(NUM_COLOURS), key=lambda c: (len(users[c]), given[c], c))
        free = next(mark for mark in count() if mark not in users[colour])
        users[colour].add(free)
        given[colour] = number
        look = colour + NUM_COLOURS * free
        if ended is not None:
            heappush(ends, (ended, look))
        looks.append(look)
    return looks


def colour_of(look: int) -> int:
    """Return the index into `colours.REQUESTS`."""
    return look % NUM_COLOURS


def mark_of(look: int) -> str:
    """Return the number that tells a request from others of its colour; "" for the first."""
    return str(look // NUM_COLOURS + 1) if look >= NUM_COLOURS else ""
