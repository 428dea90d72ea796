"""One request at one backend: send it, check what comes back, pass it on.

"stream": true    the first event decides whether the backend answers; then whole events pass as they come
otherwise         the whole answer is read and checked, so one that is cut can still be asked for elsewhere

`engine/server/answers.py` says what a whole answer is.
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

from engine.gateway.backend import UNSUPPORTED, Backend, GatewayRequest
from engine.gateway.config import BackendSettings
from engine.gateway.metrics import GatewayMetrics
from engine.gateway.route import Decision
from engine.server.answers import (
    MOST_BYTES,
    Event,
    EventStream,
    body_fault,
    error_of,
    json_object,
    usage,
)
from engine.server.connection import CLIENT_LEFT
from engine.server.errors import ApiError

logger = logging.getLogger(__name__)

RETRIED = (500, 502, 503, 504)
"""Statuses after which another backend is asked; 429 is for the client."""
PASSED_ON = ("content-type", "retry-after", "x-request-id")
TO_CLOSE_S = 1.0
"""Time that a backend has to end its response after [DONE], so that its connection can be used again."""
UNANSWERED = {502: "BadGatewayError", 503: "ServiceUnavailableError", 504: "GatewayTimeoutError"}


@dataclass(frozen=True)
class Failure:
    """Reason why a backend's answer is not passed on."""

    what: str
    status: int
    """For the client, if no other backend can answer: 502 no whole answer, 503 no connection, 504 too late."""
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
        self._stream = EventStream()
        self._incoming: AsyncIterator[bytes] | None = None
        self._held: list[Event] = []
        """Events that came before the stream was passed on."""
        self._is_open = False
        self._total_tokens = 0
        self.status = 0
        """Status that the client gets."""
        self.ended_status = CLIENT_LEFT
        """Status by which the answer counts: that of a stream is known at its end."""

    async def open(self, path: str, body: dict[str, Any]) -> Failure | None:
        """Send, and wait for the first event of a stream or for a whole answer.

        Return why it is not to be passed on; None if it is.
        """
        self.backend.begin(self._request, time.monotonic())
        self._is_open = True
        self._stream = EventStream(path)
        settings = self.backend.settings
        headers = headers_for(settings) | {"X-Request-Id": self._request.id}
        try:
            built = self._client.build_request(
                "POST", settings.url + path, content=encoded(body), headers=headers
            )
            self._response = await self._client.send(built, stream=True)
            self._incoming = self._response.aiter_bytes()
            self.status = self._response.status_code
            is_stream = bool(body.get("stream")) and self.status == 200
            failure = await (self._first_event() if is_stream else self._whole(path))
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

    async def _first_event(self) -> Failure | None:
        """Wait for the first event. A stream that begins with an error is an answer with its status."""
        assert self._response is not None and self._incoming is not None
        kind = self._response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            return Failure(f"a stream was answered with {kind[:80] or 'no content type'}", 502)
        stream, size = self._stream, 0
        async for received in self._incoming:
            self._held += self._take(received)
            size += len(received)
            if stream.num_chunks or stream.error or stream.is_over:
                break
            if size > MOST_BYTES:
                return Failure(f"{MOST_BYTES >> 20} MiB of a stream without a choice", 502)
        if stream.num_chunks or (fault := stream.fault) is None:
            return None
        if not fault.is_error:
            return Failure(fault.what, fault.status)
        await self._response.aclose()
        [content, *_] = [event.content for event in self._held if event.content and error_of(event.content)]
        return self._answer(fault.status, encoded(content))

    async def _whole(self, path: str) -> Failure | None:
        """Read an answer that is no stream of events, and check it."""
        assert self._incoming is not None
        content = bytearray()
        async for chunk in self._incoming:
            content += chunk
            if len(content) > MOST_BYTES:
                return Failure(f"an answer longer than {MOST_BYTES >> 20} MiB", 502)
        body = json_object(content)
        if self.status < 400:
            fault = body_fault(path, body)
            if fault is not None and not fault.is_error:
                return Failure(fault.what, fault.status)
            self._total_tokens = usage(body)
            return self._answer(self.status if fault is None else fault.status, bytes(content))
        if body is None:
            message = f"backend {self.backend.name} answered HTTP {self.status} without an error of its API"
            content = bytearray(encoded(ApiError(self.status, message, type="BackendError").body()))
        return self._answer(self.status, bytes(content))

    def _answer(self, status: int, content: bytes) -> Failure | None:
        """End with a whole answer, an error included. Return a failure if another backend may do better."""
        assert self._response is not None
        if status >= 400:
            self._response.headers["content-type"] = "application/json"
        self._content, self.status, self._first = content, status, time.monotonic()
        self._end(not is_fault(status), "ok" if status < 400 else f"HTTP {status}", status)
        return Failure(f"HTTP {status}", status, is_answer=True) if status in RETRIED else None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far; for a stream an estimate until its usage has come."""
        if self._content is not None or not self._stream.num_chunks:
            return self._total_tokens
        return self._stream.total_tokens or self._request.num_tokens + self._stream.num_chunks

    @property
    def headers(self) -> dict[str, str]:
        assert self._response is not None
        passed_on = {
            name: self._response.headers[name] for name in PASSED_ON if name in self._response.headers
        }
        return passed_on | {"X-Prep-Backend": self.backend.name}

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body: whole, or its events as they come. A stream that is not whole ends with an error event."""
        if self._content is not None:
            yield self._content
            return
        assert self._incoming is not None
        if self._held:
            yield b"".join(event.raw for event in self._held)
        try:
            while not self._stream.is_over:
                received = await anext(self._incoming, None)
                if received is None:
                    break
                if events := self._take(received):
                    yield b"".join(event.raw for event in events)
            fault = self._stream.fault
            failure = None if fault is None else Failure(fault.what, fault.status)
        except httpx.HTTPError as error:
            failure = _failure_of(error)
        if failure is None or self._stream.error is not None:
            await self._close_response()
            return
        logger.warning("backend %s broke off: %s", self.backend.name, failure.what)
        status = 504 if failure.status == 504 else 502
        self._end(False, failure.what, status)
        broken = ApiError(status, f"the backend broke off: {failure.what}", type=UNANSWERED[status])
        yield b"data: " + encoded(broken.body()) + b"\n\n"

    def _take(self, received: bytes) -> list[Event]:
        """Take in bytes of the stream. Its end is counted before a client can leave."""
        stream = self._stream
        events = stream.feed(received)
        if not stream.num_chunks:
            return events
        self._first = self._first or time.monotonic()
        if stream.error is not None:
            self._end(
                not is_fault(stream.error.status),
                f"HTTP {stream.error.status} in the stream",
                stream.error.status,
            )
        elif stream.is_done and stream.fault is None:
            self._end(True, "ok", 200)
        elif stream.is_done:
            events.pop()  # the [DONE] of an answer that is not whole
        return events

    async def _close_response(self) -> None:
        """Read on after the last event, so that the connection is used again."""
        assert self._incoming is not None
        with anyio.move_on_after(TO_CLOSE_S):
            try:
                async for _ in self._incoming:
                    pass
            except httpx.HTTPError:
                pass  # the answer is whole

    async def close(self, why: str | None = None) -> None:
        """Drop what has not been passed on. why: what the backend did wrong; None: the client left."""
        # Before the first await: it may be cancelled.
        self._end(None if why is None else False, why or "client left", CLIENT_LEFT)
        if self._response is not None:
            with anyio.CancelScope(shield=True):
                await self._response.aclose()

    def _end(self, ok: bool | None, how: str, status: int) -> None:
        if self._is_open:
            self._is_open = False
            self.ended_status = status
            self.backend.end(self._request, time.monotonic(), ok)
            self.decision.ended = how
            self._metrics.end(self.backend.name, how)
            if ok is not None:  # of a client that left, nothing is known
                latency_s = None if self._first is None else self._first - self._began
                self._on_end(self.backend, how != "ok", latency_s)


def is_fault(status: int) -> bool:
    """Whether a status counts against its backend."""
    return status >= 500 and status != UNSUPPORTED


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
