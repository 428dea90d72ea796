"""Balancing rules of a gateway: weighted round robin, and sticky sessions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence


class WeightedRoundRobin:
    """Smooth weighted round robin as in nginx: the replica furthest behind its share is next."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = list(weights)
        self._credit = [0] * len(weights)

    def choose(self) -> int:
        for index, weight in enumerate(self.weights):
            self._credit[index] += weight
        best = max(range(len(self.weights)), key=lambda index: (self._credit[index], -index))
        self._credit[best] -= sum(self.weights)
        return best


class Sticky:
    """Applies another rule once per key and keeps its choice."""

    def __init__(self, choose: Callable[[], int]) -> None:
        self._choose = choose
        self._home: dict[Hashable, int] = {}

    def choose(self, key: Hashable) -> int:
        if key not in self._home:
            self._home[key] = self._choose()
        return self._home[key]
