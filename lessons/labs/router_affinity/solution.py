"""Solution of lab router-affinity. The docstrings of the stub state the contract."""

from __future__ import annotations

import math


class AffinityRouter:
    needs_state = True

    def __init__(self, factor: float = 1.25) -> None:
        self.factor = factor

    def choose(self, request, core, ready):
        most = math.ceil(self.factor * (sum(replica.load for replica in ready) + 1) / len(ready))
        allowed = [replica for replica in ready if replica.load < most]

        def worth(replica):
            return replica.hit(core), -replica.load, -replica.tokens, -replica.index

        return max(allowed, key=worth)
