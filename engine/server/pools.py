"""HTTP clients for a thousand requests at once.

A pool of httpx looks at all its connections for every request, some of them once per idle connection, and closes one
that has been idle for `keepalive_expiry` even if a request has just been given it. Sixteen pools without that limit
look at a sixteenth each, and close what the server has closed.
"""

from __future__ import annotations

import ssl
from functools import cache
from itertools import cycle
from types import TracebackType
from typing import Self

import httpx

NUM_POOLS = 16


class Pools(httpx.AsyncBaseTransport):
    """A transport of httpx that gives its requests to several pools in turn."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        self._pools = [
            httpx.AsyncHTTPTransport(verify=_certificates(), limits=limits) for _ in range(NUM_POOLS)
        ]
        self._turns = cycle(self._pools)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._turns).handle_async_request(request)

    async def __aenter__(self) -> Self:
        for pool in self._pools:
            await pool.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()


@cache
def _certificates() -> ssl.SSLContext:
    """Read the trusted certificates once per process: tens of milliseconds."""
    return httpx.create_ssl_context()
