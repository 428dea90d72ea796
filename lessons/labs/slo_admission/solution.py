"""Solution of lab slo-admission. The docstrings of the stub state the contract."""

from __future__ import annotations

import math


class Rate:
    """Events per second, where old steps fade."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.events = self.seconds = 0.0

    def add(self, events: int, seconds: float) -> None:
        fade = math.exp(-seconds / self.window)
        self.events = self.events * fade + events
        self.seconds = self.seconds * fade + seconds

    def seconds_for(self, events: int) -> float:
        """Return the time of so many events at this rate; 0 if there was none yet."""
        return events * self.seconds / self.events if self.events else 0.0


class SloAdmission:
    def __init__(self, seats: int, window: float = 2.0) -> None:
        if seats < 1 or not window > 0:
            raise ValueError(f"seats >= 1 and window > 0, got {seats} and {window}")
        self.seats = seats
        self.prompts, self.ends = Rate(window), Rate(window)
        self.admitted: dict[str, int] = {}
        """Prompt tokens of requests that have not ended."""
        self.started: set[str] = set()
        """Ids of those that have their first token."""
        self.queued = 0
        """Prompt tokens of the others."""

    def step(self, seconds: float, prompt_tokens: int, first: list[str], done: list[str]) -> None:
        if prompt_tokens:
            self.prompts.add(prompt_tokens, seconds)
        self.ends.add(len(done), seconds)
        for request_id in first:
            if request_id in self.admitted and request_id not in self.started:
                self.started.add(request_id)
                self.queued -= self.admitted[request_id]
        for request_id in done:
            self.leave(request_id)

    def forecast(self, tokens: int) -> float:
        own = self.prompts.seconds_for(tokens)
        compute = self.prompts.seconds_for(self.queued + tokens)
        excess = len(self.admitted) + 1 - self.seats
        return max(compute, self.ends.seconds_for(excess) + own) if excess > 0 else compute

    def arrive(self, request_id: str, tokens: int, limit: float) -> bool:
        if tokens < 1:
            raise ValueError(f"a prompt has at least one token, got {tokens}")
        if request_id in self.admitted:
            raise ValueError(f"request {request_id!r} has not ended")
        if self.admitted and self.forecast(tokens) > limit:
            return False
        self.admitted[request_id] = tokens
        self.queued += tokens
        return True

    def leave(self, request_id: str) -> None:
        tokens = self.admitted.pop(request_id, 0)
        if request_id not in self.started:
            self.queued -= tokens
        self.started.discard(request_id)
