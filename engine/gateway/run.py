"""Listen for the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvicorn

from engine.gateway.app import create_app
from engine.gateway.config import GatewaySettings
from engine.gateway.proxy import Gateway
from engine.server.connection import server_config
from engine.server.listen import listen


def serve(settings: GatewaySettings, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until a signal; requests under way finish. Raises OSError if the address cannot be used."""

    async def run() -> None:
        app = create_app(Gateway(settings))
        config = server_config(app, timeout_graceful_shutdown=30)
        listener.listen(config.backlog)
        ready(listener.getsockname()[1])
        await uvicorn.Server(config).serve([listener])

    with listen(host, port) as listener:
        asyncio.run(run())
