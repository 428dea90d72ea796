"""A colour per request, the same on all pages: no two requests that live at the same time share one, if that can be.

A request gets its colour when it arrives, from those that no living request has: the one that was given out the
longest ago. With more living requests than colours, it gets the one with the fewest living requests. Only the past
decides, so a colour never changes while a run grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

NUM_COLOURS = 7
"""Length of `colours.REQUESTS`."""


def assign(lives: Iterable[tuple[int, int | None]]) -> list[int]:
    """Return an index into `colours.REQUESTS` per request. lives: (step of arrival, step of the end or None), in order
    of arrival."""
    users = [0] * NUM_COLOURS
    given = [-1] * NUM_COLOURS
    ends: list[tuple[int, int]] = []
    found: list[int] = []
    for number, (added, ended) in enumerate(lives):
        while ends and ends[0][0] <= added:
            users[heappop(ends)[1]] -= 1
        colour = min(range(NUM_COLOURS), key=lambda each: (users[each], given[each], each))
        users[colour] += 1
        given[colour] = number
        if ended is not None:
            heappush(ends, (ended, colour))
        found.append(colour)
    return found
