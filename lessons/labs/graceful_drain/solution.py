"""Solution of lab graceful-drain. The docstrings of the stub state the contract."""

from __future__ import annotations

import math


class Drain:
    def __init__(self, limit_s: float = 30.0, abort_s: float = 2.0, retry_after_s: int = 5) -> None:
        if limit_s < 0 or abort_s < 0 or retry_after_s < 1:
            raise ValueError("limit_s and abort_s are at least 0, retry_after_s at least 1")
        self.limit_s, self.abort_s, self.retry_after_s = limit_s, abort_s, retry_after_s
        self.deadline = self.last = math.inf
        self.is_signalled = False
        self.in_flight: dict[str, bool] = {}
        """Requests in order of their beginning, and whether tick has named them."""
        self.num_aborted = 0

    def state(self, now: float) -> str:
        if not self.is_signalled:
            return "serving"
        if not self.in_flight or now >= min(self.last, self.deadline + self.abort_s):
            return "stopped"
        return "aborting" if now >= self.deadline else "draining"

    def signal(self, now: float) -> None:
        state = self.state(now)
        if state == "serving":
            self.is_signalled, self.deadline = True, now + self.limit_s
        elif state == "draining":
            self.deadline = now
        elif state == "aborting":
            self.last = now

    def begin(self, now: float, request_id: str) -> tuple[int, dict[str, str]]:
        if self.state(now) != "serving":
            return 503, {"Retry-After": str(self.retry_after_s), "Connection": "close"}
        if request_id in self.in_flight:
            raise ValueError(f"request {request_id!r} is in flight")
        self.in_flight[request_id] = False
        return 200, {}

    def end(self, now: float, request_id: str) -> None:
        if self.state(now) != "stopped":
            self.in_flight.pop(request_id, None)

    def tick(self, now: float) -> list[str]:
        if self.state(now) != "aborting":
            return []
        named = [name for name, was_named in self.in_flight.items() if not was_named]
        self.in_flight.update(dict.fromkeys(named, True))
        self.num_aborted += len(named)
        return named

    def health(self, now: float, probe: str) -> int:
        if probe not in ("ready", "live"):
            raise ValueError(f"probe must be ready or live, got {probe!r}")
        state = self.state(now)
        return 200 if state == "serving" or (probe == "live" and state != "stopped") else 503

    def exit_code(self, now: float) -> int | None:
        if self.state(now) != "stopped":
            return None
        return 1 if self.num_aborted or self.in_flight else 0
