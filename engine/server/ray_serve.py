"""Replicas of the server on the machines of a Ray cluster, behind Ray Serve's proxies.

    serve run engine.server.ray_serve:build model=shop replicas=2

    client --HTTP--> proxy of Ray Serve --> replica 0: the app of run.py, an engine core in a process of its own
                                       '--> replica 1

Ray places the replicas, replaces one whose engine died, drains those that it stops, and balances by the requests
under way. Each request meets one replica: load adapters at the start (`lora_modules`), and scrape `/metrics` of
replicas by Ray's own means. For routing by prefix or adapter, put `prep gateway` in front of single servers instead.
Source of the builder's form: Ray Serve, "Pass arguments to applications". Needs `pip install 'ray[serve]'`.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.async_llm import AsyncLLM
from engine.config import ConfigError, EngineArgs
from engine.server.run import ServerArgs, building
from prep_common.complaints import complain

UNDER_WAY = 1000
"""Requests that Ray Serve sends to one replica at once; the replica's own queue decides earlier."""


class AppArgs(BaseModel):
    """Arguments of the builder, also as NAME=VALUE of `serve run`."""

    model_config = ConfigDict(extra="forbid")

    model: str = "shop"
    replicas: int = Field(default=1, ge=1)
    num_gpus: float = Field(default=0, ge=0)
    """GPUs of a replica; Ray then shows it these only."""
    engine: dict[str, Any] | Json[dict[str, Any]] = {}
    """Settings of the engine (EngineArgs), on the command line as JSON."""
    server: dict[str, Any] | Json[dict[str, Any]] = {}
    """Settings of the server (ServerArgs) but host and port, which are Ray Serve's."""


class _AppOfThisProcess:
    """The application that the replica of this process has built: Ray Serve wants one before there is an engine."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _AppOfThisProcess.app(scope, receive, send)


class Replica:
    """One engine and its application."""

    async def __init__(self, args: AppArgs) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        os.environ.setdefault("PREP_KERNELS_BUILD", "wait")  # as `prep serve` does
        self._stack = AsyncExitStack()
        self._llm = self._stack.enter_context(
            AsyncLLM(EngineArgs.create(model=args.model, **args.engine), own_process=True)
        )
        settings = ServerArgs(**args.server)
        app, _ = await self._stack.enter_async_context(building(args.model, self._llm, settings))
        _AppOfThisProcess.app = app

    def check_health(self) -> None:
        """Raise if the engine died; Ray then starts another replica."""
        if self._llm.errored:
            raise RuntimeError("the engine died")

    async def __del__(self) -> None:
        """Called by Ray Serve when the requests under way have ended."""
        await self._stack.aclose()


def build(args: dict[str, Any]) -> Any:
    """Return the Ray Serve application for AppArgs. Raises ConfigError without Ray Serve or for wrong settings."""
    try:
        settings = AppArgs.model_validate(args)
    except ValidationError as error:
        raise ConfigError(f"arguments of the application: {complain(error.errors(), AppArgs)}") from None
    return _application(settings)


def _application(args: AppArgs) -> Any:
    try:
        from ray import serve
    except ImportError:
        raise ConfigError("replicas need Ray Serve: pip install -e '.[ray]'") from None
    try:
        EngineArgs.create(model=args.model, **args.engine)
        ServerArgs(**args.server)
    except TypeError as error:
        raise ConfigError(f"engine or server: {error}; names are those of `prep serve --help`") from None
    deployment = serve.deployment(
        name="prep",
        num_replicas=args.replicas,
        max_ongoing_requests=UNDER_WAY,
        ray_actor_options={"num_cpus": 0, "num_gpus": args.num_gpus},  # Ray only counts CPUs
        health_check_period_s=2,
        graceful_shutdown_timeout_s=ServerArgs(**args.server).drain_timeout_s,
    )
    return deployment(serve.ingress(_AppOfThisProcess())(Replica)).bind(args)
