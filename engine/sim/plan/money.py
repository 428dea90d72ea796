"""Own GPUs against a price per token, by volume.

cost
 |            ____/ own: a step for each replica, above people and spares
 |       ____/ .·
 |  ____/  .·
 |      .·            managed: proportional to the volume
 +------|------------ requests per month
    break-even
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOURS_PER_MONTH = 730.0
MOST_REPLICAS = 100_000


@dataclass(frozen=True)
class Bill:
    """Monthly costs as a function of the number of requests per month."""

    per_replica: float  # cost of one replica per month
    fixed: float  # people, and replicas for failures that a single replica needs, too
    managed_per_request: float
    requests_per_replica: float  # requests per month for which one replica is planned, at this day's shape

    def replicas(self, requests: float) -> int:
        return max(1, math.ceil(requests / self.requests_per_replica - 1e-9))

    def own_of(self, replicas: int) -> float:
        return self.fixed + replicas * self.per_replica

    def own(self, requests: float) -> float:
        return self.own_of(self.replicas(requests))

    def managed(self, requests: float) -> float:
        return requests * self.managed_per_request

    def break_even(self) -> float | None:
        """Return the least requests per month at which the own fleet costs no more. None: at no volume.

        With n replicas the costs meet at own_of(n) / price per request, if n replicas serve that many: if the managed
        price of n full replicas covers them and the fixed costs.
        """
        margin = self.managed(self.requests_per_replica) - self.per_replica
        return self._crossing(self.fixed / margin) if margin > 0 else None

    def stays_cheaper(self) -> float | None:
        """Return the requests per month from which the own fleet is never dearer again, after each further replica.

        Just above n full replicas the managed price has grown n times, the own cost n + 1 times.
        """
        margin = self.managed(self.requests_per_replica) - self.per_replica
        return self._crossing((self.fixed + self.per_replica) / margin) if margin > 0 else None

    def _crossing(self, replicas: float) -> float:
        return self.own_of(max(1, math.ceil(replicas - 1e-9))) / self.managed_per_request
