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
        raise NotImplementedError("write FairShare")

    def arrive(self, request_id: str, tenant: str, tokens: int) -> float:
        """Return the key of a request that arrives now: its finish tag.

        start tag   = the larger of the tenant's last finish tag (0 before its first request) and the virtual time
        finish tag  = start tag + tokens / weight of the tenant

        tokens: prompt and expected output, at least 1. Raises ValueError for fewer tokens, and if a request of this id
        is unfinished; such a call changes nothing. The id of a request that has ended may arrive again.
        """
        raise NotImplementedError("write arrive")

    def finish(self, request_id: str) -> None:
        """A request has ended, or its client has left. An unknown id is no error. Tags of tenants stay as they are."""
        raise NotImplementedError("write finish")

    @property
    def virtual_time(self) -> float:
        """The smallest start tag of an unfinished request; without any, the largest finish tag given so far, or 0."""
        raise NotImplementedError("write virtual_time")
