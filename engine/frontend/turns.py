"""Long work for one client is done in portions, and other clients are served between them.

In the event loop they have turns; in the engine's thread steps run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

AT_ONCE = 32
"""Prompts, completions or choices of a request that are handled before other clients have their turn."""
PORTION = 1024
"""Cost of the requests that come and go between two steps, and completions that are aborted at once: about 10 ms."""
QUEUED = 4
"""Cost of a completion that is queued, without its prompt, or of a message to abort some."""
TOKENS = 32
"""Tokens of its prompt for a cost of 1: they are copied and hashed."""


async def let_others_run(number: int) -> None:
    """Let other tasks run once after each AT_ONCE items; `number`: those of a loop, counted from 0."""
    if number % AT_ONCE == AT_ONCE - 1:
        await asyncio.sleep(0)


class BetweenSteps:
    """Work of the engine's thread for requests that come and go, in parts that each yield their cost.

    Aborts overtake the rest, which keeps its order: completions to queue, and calls such as to unload an adapter.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._portion = max(PORTION, QUEUED * max_num_seqs)  # a step starts no more than were queued
        self._left = self._portion
        self._aborts: deque[Iterator[int]] = deque()
        self._others: deque[Iterator[int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._aborts or self._others)

    def abort(self, work: Iterator[int]) -> None:
        self._aborts.append(work)

    def append(self, work: Iterator[int]) -> None:
        self._others.append(work)

    def run(self) -> None:
        """Do a portion of the aborts, or what is left of the portion of the rest."""
        if _run(self._aborts, self._portion) > 0:
            self._left = _run(self._others, self._left)

    def refill(self) -> None:
        """Start a new portion: a step has run, or there is none to run."""
        self._left = self._portion


def _run(works: deque[Iterator[int]], left: int) -> int:
    """Work for a cost of `left`; return what is left of it."""
    while works and left > 0:
        if (cost := next(works[0], None)) is None:
            works.popleft()
        else:
            left -= cost
    return left
