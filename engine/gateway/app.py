"""The gateway's routes: OpenAI's API in front, and what it decided.

POST /v1/chat/completions ...   to a backend: FORWARDED
GET  /v1/models  /health        of the backends; healthy while one is
GET  /metrics                   responses, attempts, backends that are up: metrics.py
GET  /gateway/state             backends, tenants, canary, shadow
GET  /gateway/decisions[/ID]    why that backend; ?last=N decisions
POST /gateway/canary {"share"}  change the canary's share; 0 rolls back at once
POST /gateway/backends {"name", "url", ...}   one more backend
POST /gateway/backends/NAME/drain             no new requests for it
DELETE /gateway/backends/NAME                 forget it; 409 while it has requests
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.gateway.backend import GatewayRequest
from engine.gateway.config import BackendSettings
from engine.gateway.kv_index import KVIndex
from engine.gateway.proxy import Gateway, Tenant
from engine.gateway.sending import Sending, headers_for
from engine.server.bodies import parse
from engine.server.connection import CLIENT_LEFT, until_hang_up
from engine.server.errors import ApiError
from engine.server.middleware import BodyLimit, sound_id
from prep_common.complaints import complaints, path_of
from prep_common.text import shown

MOST_DECISIONS = 100
FORWARDED = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""Paths for clients of the gateway. The administration of a backend, such as /v1/load_lora_adapter, is not."""


def create_app(gateway: Gateway, more: Sequence[Route] = (), *, max_body_bytes: int = 32 << 20) -> Starlette:
    """Return the application of a gateway, which it closes at its end. more: further routes."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(gateway.watch())
        try:
            yield
        finally:
            watching.cancel()
            await gateway.close()

    routes = [
        Route("/v1/models", _bound(gateway, _models)),
        *(Route(path, _bound(gateway, _forward), methods=["POST"]) for path in FORWARDED),
        Route("/health", _bound(gateway, _health)),
        Route("/metrics", _bound(gateway, _metrics)),
        Route("/gateway/state", _bound(gateway, _state)),
        Route("/gateway/decisions", _bound(gateway, _decisions)),
        Route("/gateway/decisions/{id:path}", _bound(gateway, _decision)),
        Route("/gateway/canary", _bound(gateway, _canary), methods=["POST"]),
        Route("/gateway/backends", _bound(gateway, _add), methods=["POST"]),
        Route("/gateway/backends/{name}/drain", _bound(gateway, _drain), methods=["POST"]),
        Route("/gateway/backends/{name}", _bound(gateway, _remove), methods=["DELETE"]),
        *more,
    ]

    async def failed(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), error.status, error.headers)

    async def unknown(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message = (
            f"{request.method} {request.url.path[:80]} is not offered here; POST {', '.join(FORWARDED)} are"
        )
        return await failed(request, ApiError(error.status_code, message))

    handlers: Any = {ApiError: failed, HTTPException: unknown}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.add_middleware(BodyLimit, limit=max_body_bytes)
    return app


def _bound(gateway: Gateway, handle: Any) -> Any:
    async def endpoint(request: Request) -> Response:
        return await handle(gateway, request)  # type: ignore[no-any-return]

    return endpoint


class _Passing(StreamingResponse):
    """Passes an answer on. If the client leaves, the backend is told, also if nothing has been passed on yet."""

    def __init__(self, sending: Sending, gateway: Gateway, tenant: Tenant | None) -> None:
        super().__init__(sending.chunks(), sending.status, sending.headers)
        self._sending, self._gateway, self._tenant = sending, gateway, tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            sending, tenant = self._sending, self._tenant
            self._gateway.count_tokens(tenant, sending.num_tokens)
            try:
                await sending.close()
            finally:
                self._gateway.count_response(tenant, sending.ended_status)


async def _forward(gateway: Gateway, request: Request) -> Response:
    tenant: Tenant | None = None
    sending: Sending | None
    try:
        tenant = gateway.tenant_of(request.headers.get("authorization", ""))
        body = await read_body(request)
        gateway.admit(tenant)
        sending = await until_hang_up(request, _send(gateway, request, tenant, body))
    except ApiError as error:
        gateway.count_response(tenant, error.status)
        raise
    except asyncio.CancelledError:
        gateway.count_response(tenant, CLIENT_LEFT)
        raise
    except ClientDisconnect:  # while it sent its body
        sending = None
    if sending is None:
        gateway.count_response(tenant, CLIENT_LEFT)
        return Response(status_code=CLIENT_LEFT)
    return _Passing(sending, gateway, tenant)


async def _send(gateway: Gateway, request: Request, tenant: Tenant | None, body: dict[str, Any]) -> Sending:
    gateway.num_arrivals += 1
    await gateway.until_backend()
    trimmed = gateway.within_budget(body)
    name = "" if tenant is None else tenant.settings.name
    routed = replace(
        GatewayRequest.of(sound_id(request.headers) or uuid4().hex, name, body),
        prompt=await gateway.prompt_of(body),
    )
    if tenant is not None and body.get("stream"):  # the usage of a stream comes only if it is asked for
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return await gateway.send(request.url.path, body, routed, trimmed)


async def _models(gateway: Gateway, request: Request) -> Response:
    gateway.tenant_of(request.headers.get("authorization", ""))
    models: dict[str, Any] = {}
    for backend in gateway.backends:
        if backend.is_healthy:
            url = f"{backend.settings.url}/v1/models"
            try:
                response = await gateway.client.get(url, headers=headers_for(backend.settings))
                cards = {str(card["id"]): card for card in response.raise_for_status().json()["data"]}
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                continue  # it has nothing to offer now
            models = cards | models
    return JSONResponse({"object": "list", "data": list(models.values())})


async def _health(gateway: Gateway, _: Request) -> Response:
    return Response(status_code=200 if any(backend.is_healthy for backend in gateway.backends) else 503)


async def _metrics(gateway: Gateway, request: Request) -> Response:
    gateway.check_admin(request.headers.get("authorization", ""))
    return Response(generate_latest(gateway.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _state(gateway: Gateway, request: Request) -> Response:
    gateway.check_admin(request.headers.get("authorization", ""))
    backends = [
        {
            "name": backend.name, "url": backend.settings.url, "version": backend.settings.version,
            "healthy": backend.is_healthy, "draining": backend.is_draining, "breaker": backend.breaker.state,
            "load": backend.load,
            "requests": backend.num_requests, "failed": backend.num_failed,
            **_kv_state(backend.index_of_kv),
        }
        for backend in gateway.backends
    ]  # fmt: skip
    tenants = [
        {
            "name": tenant.settings.name, "requests": tenant.num_requests, "tokens": tenant.num_tokens,
            "tokens_left_today": None if tenant.quota is None else tenant.quota.limit - tenant.quota.used,
        }
        for tenant in gateway.tenants
    ]  # fmt: skip
    canary, watch = gateway.route.canary, gateway.canary_watch
    return JSONResponse(
        {
            "policy": gateway.settings.policy,
            "backends": backends,
            "tenants": tenants,
            "canary": None if canary is None else canary.model_dump(),
            "canary_look": None if watch is None or watch.last is None else watch.last.as_json(),
            "shadow": vars(gateway.shadowed),
        }
    )


def _kv_state(index: KVIndex | None) -> dict[str, int | None]:
    """Return what the KV events told; None if there are none."""
    if index is None or not index.is_known:
        return {"kv_blocks": None, "kv_batches_missed": None}
    return {"kv_blocks": len(index), "kv_batches_missed": index.num_missed}


async def _decisions(gateway: Gateway, request: Request) -> Response:
    gateway.check_admin(request.headers.get("authorization", ""))
    wanted = request.query_params.get("last", str(MOST_DECISIONS))
    if not (wanted.isdecimal() and len(wanted) <= 6 and int(wanted)):
        raise ApiError(400, f"last must be a number from 1 to 999999, got {wanted[:20]!r}", param="last")
    last = list(gateway.decisions.values())[-int(wanted) :]
    return JSONResponse(
        [{**decision.as_json(), "sentence": decision.sentence()} for decision in reversed(last)]
    )


async def _decision(gateway: Gateway, request: Request) -> Response:
    gateway.check_admin(request.headers.get("authorization", ""))
    decision = gateway.decisions.get(request.path_params["id"])
    if decision is None:
        raise ApiError(404, f"no decision for request {request.path_params['id']!r} is kept", param="id")
    return JSONResponse({**decision.as_json(), "sentence": decision.sentence()})


async def _canary(gateway: Gateway, request: Request) -> Response:
    gateway.check_admin(request.headers.get("authorization", ""))
    share = (await read_body(request)).get("share")
    canary = gateway.route.canary
    if canary is None:
        raise ApiError(400, "this gateway has no canary; add one to its settings")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ApiError(400, f"share must be a number from 0 to 1, got {shown(share)}", param="share")
    gateway.set_canary_share(float(share))
    return JSONResponse({"version": canary.version, "share": float(share)})


async def _add(gateway: Gateway, request: Request) -> Response:
    gateway.check_admin(request.headers.get("authorization", ""))
    try:
        settings = BackendSettings.model_validate(await read_body(request))
    except ValidationError as error:
        problems = complaints(error.errors(), BackendSettings)
        text = "; ".join(problem.text for problem in problems)
        raise ApiError(400, text, param=path_of(problems[0].location) or None) from None
    gateway.add(settings)
    return JSONResponse(settings.model_dump(exclude={"api_key"}))


async def _drain(gateway: Gateway, request: Request) -> Response:
    gateway.check_admin(request.headers.get("authorization", ""))
    backend = gateway.drain(request.path_params["name"])
    return JSONResponse({"name": backend.name, "load": backend.load})


async def _remove(gateway: Gateway, request: Request) -> Response:
    gateway.check_admin(request.headers.get("authorization", ""))
    backend = gateway.drain(request.path_params["name"])
    if backend.load:
        raise ApiError(
            409, f"backend {backend.name!r} drains; it has requests under way: {backend.load}", param="name"
        )
    gateway.remove(backend.name)
    return JSONResponse({"name": backend.name})


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request. Raises ApiError 400 for anything else."""
    try:
        body = parse(await request.body())
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    if not isinstance(body.get("stream"), bool | None):
        raise ApiError(400, f"stream must be true or false, got {shown(body['stream'])}", param="stream")
    return body
