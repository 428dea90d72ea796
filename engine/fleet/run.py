"""Run a fleet until a signal or `prep fleet down`: gateway, replicas and autoscaler in one event loop.

GET  /fleet/status                 replicas, autoscaler, events
POST /fleet/scale {"replicas"}     want so many
POST /fleet/drain {"replica"}      finish its requests, stop it, want one less
POST /fleet/roll                   replace all, one at a time
POST /fleet/down                   end

The routes are the gateway's further ones, under its key. One process holds everything but the replicas, so that its
end is the end of all: a replica ends when its parent does (`prep_common.parent_link`).
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.fleet.config import FleetSettings
from engine.fleet.events import EventLog, FleetEvent
from engine.fleet.fleet import Fleet
from engine.fleet.folder import state_folder
from engine.gateway.app import create_app, read_body
from engine.gateway.config import BackendSettings, GatewaySettings
from engine.gateway.proxy import Gateway
from engine.server.child_server import PREP
from engine.server.connection import server_config
from engine.server.errors import ApiError
from engine.server.listen import listen

BACKLOG = 2048
"""Connections that wait to be accepted; uvicorn's default."""


class FleetGateway(GatewaySettings):
    """A gateway whose backends come and go."""

    backends: list[BackendSettings] = []


class _Server(uvicorn.Server):
    """A server that leaves signals to its owner once it has ended; a second one ends it at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def serve(
    settings: FleetSettings,
    ready: Callable[[str], None],
    *,
    tell: Callable[[FleetEvent], None] | None = None,
    module: str = PREP,
) -> None:
    """Run a fleet. `ready` gets its URL when it listens, before the first replica is ready; `tell` gets each event.

    Raises ConfigError if a fleet of this name runs, OSError if the address cannot be used, ProcessEnded if replicas
    cannot start.
    """
    with listen("127.0.0.1", settings.port) as listener:
        listener.listen(BACKLOG)  # before others find the fleet: they wait for its answer
        key, url = secrets.token_hex(16), f"http://127.0.0.1:{listener.getsockname()[1]}"
        with state_folder(settings.name, url, key) as folder:
            events = EventLog(settings.events, tell)
            asyncio.run(_run(settings, listener, folder, key, lambda: ready(url), events, module))


async def _run(
    settings: FleetSettings,
    listener: socket.socket,
    folder: Path,
    key: str,
    ready: Callable[[], None],
    events: EventLog,
    module: str,
) -> None:
    gateway = Gateway(gateway_settings(settings, key))
    fleet = Fleet(settings, gateway, folder, events, module=module)
    app = create_app(gateway, routes(fleet, lambda: server.handle_exit(0, None)))
    server = _Server(server_config(app, timeout_graceful_shutdown=int(settings.drain_timeout_s) + 1))
    running, serving = asyncio.create_task(fleet.run()), asyncio.create_task(server.serve([listener]))
    try:
        ready()
        await asyncio.wait((running, serving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        await serving
        running.cancel()
        await asyncio.wait([running])
        await fleet.close()
        events.add("end")
        events.close()
    if not running.cancelled():
        running.result()


def gateway_settings(settings: FleetSettings, key: str) -> GatewaySettings:
    """Return the settings of the fleet's gateway."""
    return FleetGateway(
        policy=settings.policy, tenants=settings.tenants, admin_key=key, hold=settings.hold, backends=[]
    )


def routes(fleet: Fleet, end: Callable[[], None]) -> list[Route]:
    """Return the routes that steer a fleet."""

    async def status(_: dict[str, Any]) -> dict[str, Any]:
        return fleet.state()

    async def scale(body: dict[str, Any]) -> dict[str, Any]:
        number = body.get("replicas")
        if isinstance(number, bool) or not isinstance(number, int):
            raise ApiError(400, f"replicas must be a whole number, got {number!r}", param="replicas")
        return {"wanted": fleet.scale(number)}

    async def drain(body: dict[str, Any]) -> dict[str, Any]:
        replica = fleet.drain(str(body.get("replica")))
        return {"replica": replica.name, "state": replica.state, "wanted": fleet.wanted}

    async def roll(_: dict[str, Any]) -> dict[str, Any]:
        return {"replaces": fleet.roll()}

    async def down(_: dict[str, Any]) -> dict[str, Any]:
        end()
        return {"ends": True}

    def route(path: str, handle: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], method: str) -> Route:
        async def endpoint(request: Request) -> Response:
            fleet.gateway.check_admin(request.headers.get("authorization", ""))
            body = await read_body(request) if method == "POST" else {}
            return JSONResponse(await handle(body))

        return Route(path, endpoint, methods=[method])

    return [
        route("/fleet/status", status, "GET"),
        route("/fleet/scale", scale, "POST"),
        route("/fleet/drain", drain, "POST"),
        route("/fleet/roll", roll, "POST"),
        route("/fleet/down", down, "POST"),
    ]
