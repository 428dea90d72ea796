"""Replicas as plain numbers for a learner's router: the lab router-affinity."""

from __future__ import annotations

from typing import Any


class Replica:
    """A router's view of a replica, as in engine/sim/router.py; it notes how often its cache is asked."""

    def __init__(self, index: int, load: int, tokens: int, hit: int) -> None:
        self.index, self.load, self.tokens = index, load, tokens
        self._hit = hit
        self.num_asked = 0

    def hit(self, core: Any) -> int:
        self.num_asked += 1
        return self._hit


class Request:
    def __init__(self, route_key: str) -> None:
        self.route_key = route_key


def choose_plain(
    router: Any, key: str, replicas: list[tuple[int, int, int, int]]
) -> tuple[int | None, list[int], bool]:
    """Let the router choose among replicas given as (index, load, tokens, hit).

    Returns the index of its choice, None if that is no replica, how often each replica's cache was asked, and whether
    the list is still the same.
    """
    ready = [Replica(*each) for each in replicas]
    given = list(ready)
    choice = router.choose(Request(key), core=None, ready=ready)
    chosen = next((each.index for each in given if each is choice), None)
    return chosen, [each.num_asked for each in given], ready == given
