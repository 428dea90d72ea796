"""Lab fair-share: the sort key that lets tenants take turns by tokens.

The seam is the sort key of the scheduler's queue (engine/core/queues.py). A request gets its key once, when it
arrives; the waiting request with the smallest key is admitted next, and keys never change. Your class hands out the
keys. This is start-time fair queueing (Goyal et al. 1996), which Sheng et al. 2024 (2401.00588) took to LLM serving
with tokens as the unit of service.

    scale of service, in tokens over weight
    tenant a   |--- 100 ---|--- 100 ---|--- 100 ---|      three requests at once: keys 100, 200, 300
    tenant b   |-- 50 --|                                 one request: key 50, so it is admitted first
"""

from __future__ import annotations


class FairShare:
    """Start and finish tags per request; the finish tag is the sort key."""

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        """weights: share of service by tenant, each > 0; a tenant without one has 1. Raises ValueError for others."""
        self.weights = dict(weights or {})
        if any(not weight > 0 for weight in self.weights.values()):
            raise ValueError(f"weights must be positive, got {self.weights}")
        self.last: dict[str, float] = {}
        """Last finish tag of each tenant."""
        self.starts: dict[str, float] = {}
        """Start tags of unfinished requests."""
        self.largest = 0.0
        """Largest finish tag given so far."""

    def arrive(self, request_id: str, tenant: str, tokens: int) -> float:
        """Return the key of a request that arrives now: its finish tag.

        start tag   = the larger of the tenant's last finish tag (0 before its first request) and the virtual time
        finish tag  = start tag + tokens / weight of the tenant

        tokens: prompt and expected output, at least 1. Raises ValueError for fewer tokens, and if a request of this id
        is unfinished; such a call changes nothing. The id of a request that has ended may arrive again.
        """
        if tokens < 1:
            raise ValueError(f"a request has at least one token, got {tokens}")
        if request_id in self.starts:
            raise ValueError(f"request {request_id!r} is unfinished")
        start = max(self.last.get(tenant, 0.0), self.virtual_time)
        finish = start + tokens / self.weights.get(tenant, 1.0)
        self.starts[request_id], self.last[tenant] = start, finish
        self.largest = max(self.largest, finish)
        return finish

    def finish(self, request_id: str) -> None:
        """A request has ended, or its client has left. An unknown id is no error. Tags of tenants stay as they are."""
        self.starts.pop(request_id, None)

    @property
    def virtual_time(self) -> float:
        """The smallest start tag of an unfinished request; without any, the largest finish tag given so far, or 0."""
        return min(self.starts.values(), default=self.largest)
