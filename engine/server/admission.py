"""Admission: how many requests may be in the server, and none while it sleeps or shuts down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.server.errors import ApiError


class Admission:
    """Counts the completions in the server. Used from the event loop only."""

    def __init__(self, max_running: int, max_queued: int | None) -> None:
        """max_running: rows of the engine. max_queued: completions that may wait beside; None: any number."""
        self.max_running, self.max_queued = max_running, max_queued
        self.in_flight = 0
        self.num_rejected = 0
        self.is_draining = False
        self.is_asleep = False

    def check(self, num_completions: int) -> None:
        """Raise ApiError 429 if the queue has no place for so many completions, 503 when draining or asleep."""
        if self.is_draining:
            raise ApiError(
                503, "the server is shutting down; send the request to another one", retry_after_s=5
            )
        if self.is_asleep:
            raise ApiError(503, "the engine sleeps until POST /wake_up", retry_after_s=5)
        limit = None if self.max_queued is None else self.max_running + self.max_queued
        if limit is not None and self.in_flight + num_completions > limit:
            self.num_rejected += 1
            raise ApiError(
                429,
                f"the queue is full: {self.in_flight} completions run or wait and {limit} may; try again later",
                retry_after_s=1,
            )

    @asynccontextmanager
    async def enter(self, num_completions: int) -> AsyncIterator[None]:
        """Hold places for the completions of a request."""
        self.check(num_completions)
        self.in_flight += num_completions
        try:
            yield
        finally:
            self.in_flight -= num_completions
