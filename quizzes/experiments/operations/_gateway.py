"""Gateway in front of several engines: routing by weight, shadow traffic, a circuit breaker.

    request --> Gateway --(weights, by a hash of the user)--> backend "old" | "new"
                   |----(shadow)------------------------------> the other one; its answer is compared and dropped
                   '----(breaker open, or failed)-------------> fallback, up to its quota

The caller sees `answer(user, prompt)` whichever backend serves it, so a rollback is a change of weights.
The breaker's three states are those of Nygard, "Release It!" (2007), chapter 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Backend = Callable[[str, str], str]
"""(user, prompt) -> answer; raises BackendError."""


class BackendError(Exception):
    """A backend could not answer."""


class Unavailable(Exception):
    """The breaker is open and the fallback's quota is used up."""


@dataclass
class CircuitBreaker:
    """Closed until `threshold` failures in a row; then open for `cooldown` requests; then half open for one."""

    threshold: int
    cooldown: int
    state: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    opened: int = 0
    """Times that it opened."""
    _wait: int = 0

    def allows(self) -> bool:
        """Whether the next request may go to the backend."""
        if self.state == "open":
            if self._wait > 0:
                self._wait -= 1
                return False
            self.state = "half_open"
        return True

    def record(self, ok: bool) -> None:
        if ok:
            self.state, self.failures = "closed", 0
            return
        self.failures += 1
        if self.state == "half_open" or self.failures >= self.threshold:
            self.state, self.failures, self._wait = "open", 0, self.cooldown
            self.opened += 1


@dataclass
class Counts:
    """Counters of a gateway."""

    served: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    """Calls to each backend, shadow traffic included."""
    rejected: int = 0
    shadow_compared: int = 0
    shadow_different: int = 0

    def add(self, table: dict[str, int], name: str) -> None:
        table[name] = table.get(name, 0) + 1


class Gateway:
    """Routes requests by weights. Set its fields to change routes."""

    def __init__(self, backends: dict[str, Backend], weights: dict[str, float]) -> None:
        self.backends = backends
        self.weights = weights
        self.shadow: str | None = None
        self.fallback: str | None = None
        self.fallback_quota = 0
        self.breakers: dict[str, CircuitBreaker] = {}
        self.counts = Counts()

    def route(self, user: str) -> str:
        """Return the user's backend, which is always the same while the weights stay.

        The hash is cryptographic because users have consecutive names: crc32 is linear and clusters such names.
        """
        digest = hashlib.blake2b(user.encode(), digest_size=8).digest()
        point = int.from_bytes(digest, "big") / 2**64 * sum(self.weights.values())
        for name, weight in self.weights.items():
            point -= weight
            if point < 0:
                return name
        return next(iter(self.weights))

    def answer(self, user: str, prompt: str) -> str:
        """Return the answer of the user's backend or the fallback. Raises BackendError or Unavailable."""
        name = self.route(user)
        breaker = self.breakers.get(name)
        if breaker is not None and not breaker.allows():
            return self._fall_back(user, prompt)
        try:
            answer = self._call(name, user, prompt)
        except BackendError:
            if breaker is not None:
                breaker.record(False)
            self.counts.add(self.counts.failed, name)
            if self.fallback is None:
                raise
            return self._fall_back(user, prompt)
        if breaker is not None:
            breaker.record(True)
        self.counts.add(self.counts.served, name)
        self._compare(name, user, prompt, answer)
        return answer

    def _call(self, name: str, user: str, prompt: str) -> str:
        self.counts.add(self.counts.calls, name)
        return self.backends[name](user, prompt)

    def _fall_back(self, user: str, prompt: str) -> str:
        if self.fallback is None or self.fallback_quota <= 0:
            self.counts.rejected += 1
            raise Unavailable("no backend may answer: breaker open, fallback quota used up")
        self.fallback_quota -= 1
        answer = self._call(self.fallback, user, prompt)
        self.counts.add(self.counts.served, self.fallback)
        return answer

    def _compare(self, served_by: str, user: str, prompt: str, answer: str) -> None:
        if self.shadow is None or self.shadow == served_by:
            return
        self.counts.shadow_compared += 1
        try:
            other = self._call(self.shadow, user, prompt)
        except BackendError:
            other = None
        self.counts.shadow_different += other != answer
