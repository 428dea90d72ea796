"""One request at one backend: send it, check what comes back, pass it on.

"stream": true    status and type are checked; then events pass byte by byte as they come
otherwise         the whole answer is read and must be JSON, so one that breaks off can still be asked for elsewhere
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import httpx

from engine.gateway.backend import Backend, GatewayRequest
from engine.gateway.config import BackendSettings
from engine.gateway.metrics import GatewayMetrics
from engine.gateway.route import Decision
from engine.server.errors import ApiError

logger = logging.getLogger(__name__)

RETRIED = (502, 503)
"""Answers after which another backend is asked; 429 is for the client."""
PASSED_ON = ("content-type", "retry-after", "x-request-id")
MOST_BYTES = 64 << 20
"""Length of an answer that is no stream."""


@dataclass(frozen=True)
class Failure:
    """Reason why a backend's answer is not passed on."""

    what: str
    status: int
    """For the client, if no other backend can answer: 502 no answer of this API, 503 no connection, 504 too late."""
    is_answer: bool = False
    """The backend itself answered with this status."""


class Sending:
    """One request at one backend."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        metrics: GatewayMetrics,
        backend: Backend,
        request: GatewayRequest,
        decision: Decision,
        on_end: Callable[[Backend, bool, float | None], None] = lambda *_: None,
    ) -> None:
        """on_end: called once with whether the backend failed, and its seconds to the first byte of the content."""
        self.backend, self.decision = backend, decision
        self._on_end = on_end
        self._began = time.monotonic()
        self._first: float | None = None
        self._client, self._metrics, self._request = client, metrics, request
        self._response: httpx.Response | None = None
        self._content: bytes | None = None
        """The whole answer, unless it is a stream of events."""
        self.num_tokens = 0
        """Prompt and output tokens so far; an estimate until the answer's usage has come."""
        self._is_open = False

    async def open(self, path: str, body: dict[str, Any]) -> Failure | None:
        """Send, and wait for the beginning of a stream or for a whole answer. Return why it is not to be passed on."""
        self.backend.begin(self._request, time.monotonic())
        self._is_open = True
        settings = self.backend.settings
        headers = headers_for(settings) | {"X-Request-Id": self._request.id}
        try:
            built = self._client.build_request(
                "POST", settings.url + path, content=encoded(body), headers=headers
            )
            self._response = await self._client.send(built, stream=True)
            failure = await self._check(bool(body.get("stream")))
        except httpx.HTTPError as error:
            if isinstance(
                error, httpx.ConnectError
            ):  # certain: do not wait for the health check or the breaker
                self.backend.is_healthy = False
            failure = _failure_of(error)
        except asyncio.CancelledError:
            await self.close()
            raise
        if failure is not None and not failure.is_answer:
            await self.close(failure.what)
        return failure

    async def _check(self, is_stream: bool) -> Failure | None:
        """Return what is wrong with the answer; read it if it is no stream of events."""
        assert self._response is not None
        kind = self._response.headers.get("content-type", "")
        if is_stream and self.status == 200:
            if kind.startswith("text/event-stream"):
                return None
            return Failure(f"a stream was answered with {kind[:80] or 'no content type'}", 502)
        content = bytearray()
        async for chunk in self._response.aiter_bytes():
            content += chunk
            if len(content) > MOST_BYTES:
                return Failure(f"an answer longer than {MOST_BYTES >> 20} MiB", 502)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            if self.status < 400:
                return Failure("an answer that is not JSON", 502)
            message = f"backend {self.backend.name} answered HTTP {self.status} without an error of its API"
            found = ApiError(self.status, message, type="BackendError").body()
            self._response.headers["content-type"] = "application/json"
            content = bytearray(json.dumps(found).encode())
        self._content = bytes(content)
        self._first = time.monotonic()
        self.num_tokens = _total_tokens(found)
        self._end(self.status < 500, "ok" if self.status < 400 else f"HTTP {self.status}")
        return Failure(f"HTTP {self.status}", self.status, is_answer=True) if self.status in RETRIED else None

    @property
    def status(self) -> int:
        assert self._response is not None
        return self._response.status_code

    @property
    def headers(self) -> dict[str, str]:
        assert self._response is not None
        found = {name: self._response.headers[name] for name in PASSED_ON if name in self._response.headers}
        return found | {"X-Prep-Backend": self.backend.name}

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body: whole, or as it comes. An error in the middle of a stream is an event."""
        if self._content is not None:
            yield self._content
            return
        assert self._response is not None
        tail, num_events = b"", 0
        self.num_tokens = self._request.num_tokens
        try:
            async for chunk in self._response.aiter_bytes():
                self._first = self._first or time.monotonic()
                tail = (tail + chunk)[-4096:]
                num_events += chunk.count(b"data: {")
                self.num_tokens = used_tokens(tail) or self._request.num_tokens + num_events
                yield chunk
            self._end(True, "ok")
        except httpx.HTTPError as error:
            failure = _failure_of(error)
            logger.warning("backend %s broke off: %s", self.backend.name, failure.what)
            self._end(False, failure.what)
            broken = ApiError(502, f"the backend broke off: {failure.what}", type="BadGatewayError")
            yield b"data: " + json.dumps(broken.body()).encode() + b"\n\n"

    async def close(self, why: str | None = None) -> None:
        """Drop what has not been passed on. why: what the backend did wrong; None: the client left."""
        self._end(
            None if why is None else False, why or "client left"
        )  # before the first await: it may be cancelled
        if self._response is not None:
            with anyio.CancelScope(shield=True):
                await self._response.aclose()

    def _end(self, ok: bool | None, how: str) -> None:
        if self._is_open:
            self._is_open = False
            self.backend.end(self._request, time.monotonic(), ok)
            self.decision.ended = how
            self._metrics.end(self.backend.name, how)
            if ok is not None:  # of a client that left, nothing is known
                latency_s = None if self._first is None else self._first - self._began
                self._on_end(self.backend, how != "ok", latency_s)


def headers_for(settings: BackendSettings) -> dict[str, str]:
    """Return the headers of a request to a backend: JSON, and its key."""
    key = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
    return {"Content-Type": "application/json", **key}


def encoded(body: dict[str, Any]) -> bytes:
    """Return a body as JSON in ASCII: lone surrogates stay what the client wrote."""
    return json.dumps(body).encode()


def _failure_of(error: httpx.HTTPError) -> Failure:
    if isinstance(error, httpx.ReadTimeout):
        return Failure("ReadTimeout", 504)
    is_connection = isinstance(error, httpx.NetworkError | httpx.TimeoutException)
    return Failure(type(error).__name__, 503 if is_connection else 502)


def _total_tokens(answer: dict[str, Any]) -> int:
    usage = answer.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and total > 0 else 0


def used_tokens(tail: bytes) -> int:
    """Return the total tokens of the last usage in the end of a stream, 0 without one."""
    start = tail.rfind(b'"total_tokens"')
    if start < 0:
        return 0
    digits = tail[start + len(b'"total_tokens"') :].lstrip(b" :")
    number = bytes(digits[: next((n for n, c in enumerate(digits) if not 48 <= c <= 57), len(digits))])
    return int(number) if number else 0
