"""Backends on loopback that send prepared bytes, and end the connection in a prepared way."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any, Literal

MODELS = json.dumps({"data": [{"id": "shop"}]}).encode()
EVENTS, JSON = "text/event-stream", "application/json"


@dataclass(frozen=True)
class Script:
    """Answer of a backend to each POST. It answers each GET, so it looks healthy."""

    content: bytes
    kind: str = EVENTS
    status: int = 200
    framing: Literal["chunked", "length", "close"] = "close"
    """Mark of the answer's end; `close`: the end of the connection."""
    missing: int = 0
    """Bytes that the length promises in vain; a chunked body lacks its last chunk if not 0."""
    end: Literal["close", "reset", "stall"] = "close"
    page: bytes = MODELS
    """Answer to each GET; the end of the connection ends it."""


@contextmanager
def backend(script: Script) -> Iterator[tuple[str, list[Any]]]:
    """Serve a script; return the address, and the requests so far, each with its client's address."""
    got: list[Any] = []

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            reader = self.request.makefile("rb")
            while request := reader.readline():
                length = 0
                while (line := reader.readline().strip()) != b"":
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                body = reader.read(length)
                if request.startswith(b"GET"):
                    self.request.sendall(_head(200, JSON, "Connection: close") + script.page)
                    return
                got.append(json.loads(body) | {"from": self.client_address})
                if not self._answer():
                    return

        def _answer(self) -> bool:
            """Send the script; return whether the connection goes on."""
            content, length = script.content, len(script.content) + script.missing
            framing = {"chunked": "Transfer-Encoding: chunked", "length": f"Content-Length: {length}"}
            if script.framing == "chunked":
                content = (b"%x\r\n%b\r\n" % (len(content), content) if content else b"") + (
                    b"" if script.missing else b"0\r\n\r\n"
                )
            head = _head(script.status, script.kind, framing.get(script.framing, "Connection: close"))
            self.request.sendall(head + content)
            if script.end == "stall":
                self.request.recv(1)  # until the gateway gives up
            if script.end == "reset":
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.request.close()
            return script.end == "close" and script.framing != "close" and not script.missing

    class Server(ThreadingTCPServer):
        daemon_threads = True

        def shutdown_request(self, request: Any) -> None:
            self.close_request(request)  # a shutdown would turn a reset into an end

    with Server(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", got
        finally:
            server.shutdown()


def _head(status: int, kind: str, framing: str) -> bytes:
    return f"HTTP/1.1 {status} Something\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode()


def events(*contents: Any) -> bytes:
    """Return a stream: objects as events, other bytes as they are."""
    return b"".join(
        content
        if isinstance(content, bytes)
        else b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"
        for content in contents
    )


DONE = b"data: [DONE]\n\n"


def part(path: str, text: str, finish: str | None = None) -> dict[str, Any]:
    """Return a chunk of a stream of this path."""
    of_path = {"delta": {"content": text}} if "chat" in path else {"text": text}
    return {"choices": [{"index": 0, **of_path, "finish_reason": finish}]}


def whole_body(path: str, text: str) -> dict[str, Any]:
    """Return a whole answer that is no stream."""
    of_path = {"message": {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    return {"choices": [{"index": 0, **of_path, "finish_reason": "stop"}], "usage": usage}


def whole(path: str, *, stream: bool, text: str = "good") -> Script:
    """Return the script of a backend that answers."""
    if not stream:
        return Script(json.dumps(whole_body(path, text)).encode(), JSON, framing="length")
    usage = {"choices": [], "usage": {"total_tokens": 7}}
    content = events(part(path, text), part(path, "", "stop"), usage, DONE)
    return Script(content, framing="chunked")
