"""Checks that every request passes before a handler sees it: id, key, sizes. Plain ASGI: a stream is not buffered.

Source: vLLM entrypoints/serve/middleware.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from uuid import uuid4

from prometheus_client import Counter
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.errors import ApiError
from prep_common.text import counted

OPEN_PATHS = ("/health", "/ping")
"""Answered without a key: probes of an orchestrator have none. vLLM guards /v1 only."""
LONGEST_ID = 128


def sound_id(headers: Mapping[str, str]) -> str | None:
    """Return the client's X-Request-Id; None without one, or for one that is no name."""
    given = headers.get("x-request-id", "")
    return given if 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable() else None


class RequestId:
    """Answer with the client's X-Request-Id, or with a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope.setdefault("state", {})["request_id"] = sound_id(Headers(scope=scope)) or uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"]).append("X-Request-Id", scope["state"]["request_id"])
            await send(message)

        await self.app(scope, receive, send_with_id)


class HeadLimit:
    """Refuse a path and headers of more than `limit` bytes together.

    h11 refuses them while they are incomplete; what comes in one piece has passed it.
    """

    limit = 64 << 10

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        num_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        num_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        if num_bytes <= self.limit:
            return await self.app(scope, receive, send)
        message = f"path and headers have {counted(num_bytes, 'byte')}; at most {self.limit:,} are read"
        await _refuse(ApiError(431, message), scope, receive, send)


class CountResponses:
    """Count responses by path and class of their status, as vLLM's instrumentation of FastAPI does."""

    def __init__(self, app: ASGIApp, counter: Counter) -> None:
        self.app, self._counter = app, counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = getattr(
                    scope.get("route"), "path", "none"
                )  # not the client's text: it may be anything
                self._counter.labels(scope["method"], f"{message['status'] // 100}xx", path).inc()
            await send(message)

        await self.app(scope, receive, send_and_count)


class Authenticate:
    """Refuse requests without one of the keys as bearer token. Compares in constant time."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["method"] == "OPTIONS" or scope["path"] in OPEN_PATHS
        if is_open or self._knows(Headers(scope=scope).get("authorization", "")):
            return await self.app(scope, receive, send)
        error = ApiError(401, "give the API key of this server as Authorization: Bearer KEY")
        response = JSONResponse(error.body(), 401, {"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)

    def _knows(self, authorization: str) -> bool:
        scheme, _, key = authorization.partition(" ")
        given = _digest(key)
        matches = [secrets.compare_digest(given, digest) for digest in self._digests]  # all of them
        return scheme.lower() == "bearer" and any(matches)


class BodyLimit:
    """Refuse bodies of more than `limit` bytes before they are in memory, whatever Content-Length says.

    A body that has not come within `seconds` is status 408.
    """

    seconds = 60.0

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        declared = Headers(scope=scope).get("content-length", "0")
        too_long = ApiError(413, f"the body is longer than {self.limit:,} bytes (--max-body-mib)")
        if declared.isdigit() and int(declared) > self.limit:
            return await _refuse(too_long, scope, receive, send)
        num_bytes, is_answered = 0, False
        deadline: float | None = asyncio.get_running_loop().time() + self.seconds

        async def receive_limited() -> Message:
            nonlocal num_bytes, is_answered, deadline
            problem = too_long
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                problem = ApiError(408, f"the body did not come within {self.seconds:g} s")
            else:
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    deadline = None
                if num_bytes <= self.limit or is_answered:
                    return message
            is_answered, deadline = True, None
            await _refuse(problem, scope, receive, send)
            return {"type": "http.disconnect"}

        async def send_unless_answered(message: Message) -> None:
            if not is_answered:
                await send(message)

        await self.app(scope, receive_limited, send_unless_answered)


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(error.body(), error.status, {"Connection": "close"})(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
