"""Listen for the gateway."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn

from engine.gateway.app import create_app
from engine.gateway.config import GatewaySettings
from engine.gateway.proxy import Gateway
from engine.server.connection import server_config
from engine.server.listen import listen


def serve(settings: GatewaySettings, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until a signal; requests under way finish. Raises OSError if the address cannot be used."""

    async def run() -> None:
        async with running(settings, listener) as ended:
            ready(listener.getsockname()[1])
            await ended

    with listen(host, port) as listener:
        asyncio.run(run())


@asynccontextmanager
async def running(settings: GatewaySettings, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Serve in this event loop until a signal, which the yielded task waits for, or until the context ends."""
    config = server_config(create_app(Gateway(settings)), timeout_graceful_shutdown=30)
    server = uvicorn.Server(config)
    listener.listen(config.backlog)
    ended = asyncio.create_task(server.serve([listener]))
    try:
        yield ended
    finally:
        server.should_exit = True
        await ended
