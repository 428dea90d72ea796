"""Solution of lab fair-share. The docstrings of the stub state the contract."""

from __future__ import annotations


class FairShare:
    def __init__(self, weights: dict[str, float] | None = None) -> None:
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
        self.starts.pop(request_id, None)

    @property
    def virtual_time(self) -> float:
        return min(self.starts.values(), default=self.largest)
