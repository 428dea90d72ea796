"""Solution of lab rate-limiter. The docstrings of the stub state the contract."""

from __future__ import annotations

import math


class RateLimiter:
    def __init__(
        self, requests_per_s: float, request_burst: int, tokens_per_s: float, token_burst: int
    ) -> None:
        if not (requests_per_s > 0 and tokens_per_s > 0) or min(request_burst, token_burst) < 1:
            raise ValueError("rates must be positive and bursts at least 1")
        self.rates = (requests_per_s, tokens_per_s)
        self.bursts = (request_burst, token_burst)
        self.tenants: dict[str, tuple[float, list[float]]] = {}
        """Moment of the last refill, and the levels of both buckets."""

    def take(self, now: float, tenant: str, tokens: int) -> float:
        if tokens > self.bursts[1]:
            return math.inf
        levels = self._refill(now, tenant)
        wanted = (1, tokens)
        waits = [
            max(0.0, want - level) / rate
            for want, level, rate in zip(wanted, levels, self.rates, strict=True)
        ]
        if max(waits) > 0:
            return max(waits)
        levels[:] = [level - want for level, want in zip(levels, wanted, strict=True)]
        return 0.0

    def _refill(self, now: float, tenant: str) -> list[float]:
        """Bring a tenant's buckets up to now and return their levels, a list to change in place."""
        when, levels = self.tenants.get(tenant, (now, [float(burst) for burst in self.bursts]))
        passed = max(0.0, now - when)
        for index, (rate, burst) in enumerate(zip(self.rates, self.bursts, strict=True)):
            levels[index] = min(burst, levels[index] + passed * rate)
        self.tenants[tenant] = max(when, now), levels
        return levels

    def settle(self, now: float, tenant: str, reserved: int, used: int) -> None:
        if tenant in self.tenants:
            levels = self._refill(now, tenant)
            levels[1] = min(self.bursts[1], levels[1] + reserved - used)

    def forget(self, now: float) -> int:
        for tenant in list(self.tenants):
            if self._refill(now, tenant) == list(self.bursts):
                del self.tenants[tenant]
        return len(self.tenants)
