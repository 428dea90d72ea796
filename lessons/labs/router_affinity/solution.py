"""Lab router-affinity: choose the replica for a request by cached prefix and load.

The seam is `Router` of engine/sim/router.py. The simulated fleet and the gateway (engine/gateway) call `choose` for
each request, at its arrival, with all replicas that are ready. Replicas start and stop: the list changes in length
and order from call to call, and `replica.index` is a name, not a place in the list.

A replica has                                                 unit
    replica.index      its name, an integer                   -
    replica.load       unfinished requests on it now          requests, without the new one
    replica.tokens     known tokens of those requests         tokens
    replica.hit(core)  prefix of this prompt in its cache     KV blocks

`hit` hashes the prompt and walks the cache; behind the gateway it is a look-up in an index of another process. So ask a
replica at most once per request, and only if it may get the request.
"""

from __future__ import annotations

import math


class AffinityRouter:
    """Send a request to the longest cached prefix, within a bound on the load of each replica."""

    needs_state = True
    """`choose` reads loads and caches: the fleet brings all replicas up to the present first."""

    def __init__(self, factor: float = 1.25) -> None:
        """factor: the load of a replica may be at most this many times the average."""
        self.factor = factor

    def choose(self, request, core, ready):
        """Return one of the ready replicas, a list that stays as it is.

        1. A replica may get the request if its load, this request included, is at most
           ceil(factor * (sum of all loads + 1) / number of replicas).
        2. Of these, choose the one with the longest hit.
        3. Equal hits: the lowest load; then the fewest tokens; then the smallest index.

        request: `request.route_key` names its conversation; this policy does not need it. core: the argument of `hit`.
        """
        most = math.ceil(self.factor * (sum(replica.load for replica in ready) + 1) / len(ready))
        allowed = [replica for replica in ready if replica.load < most]

        def worth(replica):
            return replica.hit(core), -replica.load, -replica.tokens, -replica.index

        return max(allowed, key=worth)
