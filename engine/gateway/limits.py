"""Limits that protect backends: token buckets and quotas per tenant, a circuit breaker, a retry budget.

Pure functions of the time that they are given, so that a test or a simulation can run them without waiting.
Sources: token bucket, RFC 2697; circuit breaker, Nygard, "Release It!" (2007), chapter 5; retry budget, Finagle and
Envoy (`retry_budget`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

DAY_S = 86_400.0


@dataclass
class TokenBucket:
    """`burst` requests at once, refilled at `rate` per second."""

    rate: float
    burst: int
    _level: float = field(default=-1.0, init=False)
    _when: float = field(default=0.0, init=False)

    def take(self, now: float, count: float = 1.0) -> float:
        """Take tokens; return 0, or the seconds until there are enough and take none."""
        if self._level < 0:
            self._level, self._when = float(self.burst), now
        self._level = min(self.burst, self._level + max(0.0, now - self._when) * self.rate)
        self._when = max(self._when, now)
        if self._level >= count - 1e-9:
            self._level -= count
            return 0.0
        return (count - self._level) / self.rate


@dataclass
class DailyQuota:
    """At most `limit` tokens per day, counted after each answer: the last request of a day may exceed it."""

    limit: int
    used: int = 0
    _day: int = -1

    def left(self, now: float) -> int:
        self._turn(now)
        return max(0, self.limit - self.used)

    def add(self, now: float, count: int) -> None:
        self._turn(now)
        self.used += count

    def seconds_to_next(self, now: float) -> float:
        return DAY_S - now % DAY_S

    def _turn(self, now: float) -> None:
        if (day := int(now // DAY_S)) > self._day:
            self._day, self.used = day, 0


@dataclass
class CircuitBreaker:
    """Closed until `failures` in a row; then open for `open_s`; then half open: one request decides."""

    failures: int
    open_s: float
    state: Literal["closed", "open", "half open"] = "closed"
    num_opened: int = 0
    _in_a_row: int = 0
    _until: float = 0.0
    _trial: bool = False

    def allows(self, now: float) -> bool:
        """Whether a request may go through; changes nothing."""
        if self.state == "open":
            return now >= self._until
        return self.state == "closed" or not self._trial

    def begin(self, now: float) -> None:
        """A request goes through."""
        if self.state == "open" and now >= self._until:
            self.state = "half open"
        self._trial = self.state == "half open"

    def record(self, now: float, ok: bool | None) -> None:
        """A request has ended. ok: None if it says nothing; the next one decides then."""
        self._trial = False
        if ok is None:
            return
        if ok:
            self.state, self._in_a_row = "closed", 0
            return
        self._in_a_row += 1
        if self.state == "half open" or (self.state == "closed" and self._in_a_row >= self.failures):
            self.state, self._in_a_row, self._until = "open", 0, now + self.open_s
            self.num_opened += 1


class RetryBudget:
    """Retries of the last ten seconds: `least_per_s` for each of them, and `share` of the requests besides.

    The share alone would refuse the first retries of a gateway with few requests. Source: Finagle, RetryBudget
    (minRetriesPerSec, percentCanRetry, ttl).
    """

    WINDOW_S = 10.0

    def __init__(self, share: float, least_per_s: float) -> None:
        self.share, self.least_per_s = share, least_per_s
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def request(self, now: float) -> None:
        self._forget(now)
        self._requests.append(now)

    def take(self, now: float) -> bool:
        """Take one retry; return whether there was one."""
        self._forget(now)
        if len(self._retries) + 1 > self.share * len(self._requests) + self.least_per_s * self.WINDOW_S:
            return False
        self._retries.append(now)
        return True

    def _forget(self, now: float) -> None:
        for times in (self._requests, self._retries):
            while times and times[0] <= now - self.WINDOW_S:
                times.popleft()
