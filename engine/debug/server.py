"""The HTTP side of the debug port: 127.0.0.1 only, a token, JSON in and out.

    GET  /debug/info                           model, settings, step, paused, breakpoints
    GET  /debug/trace?since=N&wait=SECONDS     the trace from line N on, as in the file; the header X-Prep-Next has the
                                               number to ask for next, X-Prep-End why no line will follow
    POST /debug/pause
    POST /debug/resume         {"steps_per_s": 8}            or {}
    POST /debug/step           {"n": 10}
    POST /debug/breakpoints    {"breakpoints": [{"event": "preempt"}, {"free_below": 4}]}
    POST /debug/inject         {"prompt": "..." | "prompt_token_ids": [...] | "messages": [...], "max_tokens": 32, ...}
    POST /debug/abort          {"request_id": "r3"}

Every call carries the token (`?token=`, `Authorization: Bearer`): without it every user of this machine could read
the prompts. The Host header must name this machine, which stops web pages whose name resolves to 127.0.0.1 (DNS
rebinding). There are no CORS headers, so scripts of web pages cannot read answers.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from engine.debug.breakpoints import DebugError
from engine.debug.feed import TraceFeed

Action = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Carries out a command, given its body; returns the answer, or None for that of /debug/info."""
MAX_BODY_BYTES = 8 << 20
MAX_WAIT_S = 30.0
SILENT_S = 60.0
"""Silent connections are closed after this time, which frees their threads."""
HOSTS = ("127.0.0.1", "localhost")


class DebugServer(ThreadingHTTPServer):
    """One thread per connection; connections stay open between calls."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        port: int,
        token: str,
        feed: TraceFeed,
        info: Callable[[], dict[str, Any]],
        actions: Mapping[str, Action],
    ) -> None:
        self.token, self.feed, self.info, self.actions = token, feed, info, actions
        super().__init__(("127.0.0.1", port), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="prep-debug", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect during an answer."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SILENT_S
    server: DebugServer

    def do_GET(self) -> None:
        if (query := self._admit()) is None:
            return
        path = urlsplit(self.path).path
        if path == "/debug/info":
            self._answer_with(self.server.info)
        elif path == "/debug/trace":
            self._answer_trace(query)
        elif path == "/":
            self._answer(200, {"prep": "a debug port: prep app --attach with this address shows the engine"})
        else:
            self._refuse(404, f"there is no {path} to read; there are /debug/info and /debug/trace")

    def do_POST(self) -> None:
        if self._admit() is None or (body := self._body()) is None:
            return
        path = urlsplit(self.path).path
        actions = {f"/debug/{name}": action for name, action in self.server.actions.items()}
        if (action := actions.get(path)) is None:
            self._refuse(404, f"there is no {path} to ask for; there are {', '.join(actions)}")
        else:
            self._answer_with(lambda: action(body) or self.server.info())

    def _admit(self) -> dict[str, str] | None:
        """Return the query of an authorised call; answer any other call with an error and return None."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        token = query.get("token", bearer)
        if host not in HOSTS:
            self._refuse(403, f"this port answers to 127.0.0.1 and localhost, not to {host!r}")
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            problem = "is not this engine's" if token else "is missing"
            address = "http://127.0.0.1:PORT/?token=..."
            self._refuse(
                403,
                f"the token {problem}: use the whole address that the engine printed when it started, {address}",
            )
        else:
            return query
        return None

    def _body(self) -> dict[str, Any] | None:
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= MAX_BODY_BYTES:
                raise ValueError(f"it has {length} bytes, at most {MAX_BODY_BYTES} are taken")
            body = json.loads(self.rfile.read(length) or b"{}")
            if not isinstance(body, dict):
                raise ValueError("expected a JSON object")
        except (ValueError, RecursionError) as error:
            self._refuse(400, f"the body must be a JSON object: {error}")
            return None
        return body

    def _answer_trace(self, query: dict[str, str]) -> None:
        try:
            since, wait_s = int(query.get("since", "0")), float(query.get("wait", "0"))
            if since < 0 or not 0 <= wait_s <= MAX_WAIT_S:
                raise ValueError
        except ValueError:
            self._refuse(400, f"since is a line from 0 on, wait is at most {MAX_WAIT_S:g} seconds")
            return
        feed = self.server.feed
        lines, following = feed.read(since, wait_s)
        headers = {"X-Prep-Next": str(following)}
        if feed.end is not None and following >= feed.num_lines:
            headers["X-Prep-End"] = json.dumps(feed.end)
        self._send(200, "application/x-ndjson", lines, headers)

    def _answer_with(self, function: Callable[[], dict[str, Any]]) -> None:
        try:
            answer = function()
        except DebugError as error:
            self._refuse(400, str(error))
        except Exception as error:
            self._refuse(500, f"the debug port failed: {type(error).__name__}: {error}")
        else:
            self._answer(200, answer)

    def _refuse(self, status: int, error: str) -> None:
        self.close_connection = True  # the body may not have been read
        self._answer(status, {"error": error})

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(answer).encode(), {})

    def _send(self, status: int, kind: str, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer malformed HTTP requests in JSON too."""
        what = message or explain or "it cannot be understood"
        self._refuse(int(code), f"the debug port takes GET and POST with JSON: {what}")

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing to the engine's terminal."""
