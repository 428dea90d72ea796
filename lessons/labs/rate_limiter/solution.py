"""Lab rate-limiter: requests per second and tokens per second, per tenant.

The seam is the limiter of the gateway (engine/gateway/limits.py, asked by `Gateway.admit` for each request; what it
answers becomes status 429 with Retry-After). Time is an argument, in seconds on any clock, so nothing has to wait.

A token bucket (RFC 2697) holds at most `burst`, gains `rate` per second, and is full when a tenant first appears:

    burst |-.      .--.
          |  \\    /    \\    /        a request is admitted if both buckets hold enough for it:
          |   \\  /      \\  /         1 of the bucket of requests, its tokens of the bucket of tokens
        0 +----\\/--------\\/------ t
"""

from __future__ import annotations

import math


class RateLimiter:
    """Two token buckets per tenant."""

    def __init__(
        self, requests_per_s: float, request_burst: int, tokens_per_s: float, token_burst: int
    ) -> None:
        """The same rates hold for each tenant. Raises ValueError unless rates are > 0 and bursts at least 1."""
        if not (requests_per_s > 0 and tokens_per_s > 0) or min(request_burst, token_burst) < 1:
            raise ValueError("rates must be positive and bursts at least 1")
        self.rates = (requests_per_s, tokens_per_s)
        self.bursts = (request_burst, token_burst)
        self.tenants: dict[str, tuple[float, list[float]]] = {}
        """Moment of the last refill, and the levels of both buckets."""

    def take(self, now: float, tenant: str, tokens: int) -> float:
        """Admit a request of so many tokens (prompt and max_tokens): return 0.0 and take from both buckets.

        Otherwise take nothing and return the seconds until both would hold enough, if nothing else is taken;
        math.inf if tokens exceed token_burst, because such a request never fits. A call that returns math.inf changes
        nothing: it does not make the tenant known, and its time does not count. `now` may lie before an earlier call's
        (threads): then nothing is gained, and nothing is lost. The answer follows from the levels alone, (what lacks) /
        rate, as if `now` were the latest time of a call for this tenant.
        """
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
        """Refund the tokens that an ended answer reserved and did not use. The bucket never holds more than its burst.

        used may exceed reserved: then the bucket owes, and its level is below 0 until it is refilled. A tenant that is
        not known is no error, and is not kept.
        """
        if tenant in self.tenants:
            levels = self._refill(now, tenant)
            levels[1] = min(self.bursts[1], levels[1] + reserved - used)

    def forget(self, now: float) -> int:
        """Drop the tenants whose buckets are both full, which a new tenant's would be too; return how many are kept."""
        for tenant in list(self.tenants):
            if self._refill(now, tenant) == list(self.bursts):
                del self.tenants[tenant]
        return len(self.tenants)
