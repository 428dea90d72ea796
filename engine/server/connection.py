"""HTTP connections: their time limits, and clients that hang up.

    waits for the head of a request    60 s after the first byte, 75 s between requests; then it is closed
    waits for a body                   60 s; then status 408 (middleware.py)
    waits for the client to read       60 s; then it is cut, and its request is aborted
    the machine of the client is gone  about 2 minutes (keep-alive probes of TCP, listen.py); then the same

Without these a client that stops in the middle would hold its socket, and its place in the queue, for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import h11
import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

CLIENT_LEFT = 499
IDLE_S = 75
"""Idle connections stay open longer than load balancers keep theirs, which is 60 s."""

Result = TypeVar("Result")


class Connection(H11Protocol):
    """A connection with limits. h11 refuses headers of more than 64 KiB; httptools reads on."""

    head_s = 60.0
    stall_s = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("stall", self.stall_s, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("stall")

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():  # after a reset uvicorn still calls this
            super().timeout_keep_alive_handler()
            self._start("stall", self.stall_s, self._cut_off)  # the client may not read the last answer

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("head")
        self._stop("stall")
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        """Begin to count when a head is due; a byte now and then does not prolong it."""
        is_between = self.cycle is None or self.cycle.response_complete
        if is_between and self.conn.their_state is h11.IDLE:
            self._start("head", self.head_s, self._close_without_request)
        else:
            self._stop("head")

    def _close_without_request(self) -> None:
        logger.info("closed a connection from %s: no request within %g s", self.client, self.head_s)
        self.timeout_keep_alive_handler()

    def _cut_off(self) -> None:
        logger.info("cut off %s: it has read nothing for %g s", self.client, self.stall_s)
        self.transport.abort()

    def _start(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, call)

    def _stop(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()


def server_config(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """Return uvicorn's settings of a server of ours."""
    return uvicorn.Config(
        app, http=Connection, ws="none", log_config=None, access_log=False, timeout_keep_alive=IDLE_S, **more
    )


async def until_hang_up(request: Request, work: Awaitable[Result]) -> Result | None:
    """Return the result; None if the client hung up first, which cancels the work."""
    running = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        return await running if running.done() else None
    finally:
        for task in (running, gone):
            task.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
