"""Clients that stop in the middle: of a head, of a body, of reading, of waiting."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine.async_llm import AsyncLLM
from engine.server.admission import Admission
from engine.server.connection import Connection
from engine.server.listen import listen
from engine.server.middleware import BodyLimit
from engine.server.models import Models
from engine.server.run import ServerArgs, running
from engine.server.service import Service
from tests.waiting import until

SOON_S = 0.3


@asynccontextmanager
async def serving(llm: AsyncLLM, listener: socket.socket) -> AsyncIterator[Admission]:
    admission = Admission(8, None)
    async with running("shop", llm, listener, ServerArgs(stats_interval_s=0), admission):
        yield admission


def test_a_head_that_does_not_end_is_cut_off(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_s", SOON_S)

    async def run() -> None:
        with listen("127.0.0.1", 0) as listener:
            async with serving(llm, listener):
                for beginning in (b"", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "):
                    reader, writer = await asyncio.open_connection(*listener.getsockname())
                    writer.write(beginning)
                    async with asyncio.timeout(30):
                        assert await reader.read() == b""
                    writer.close()

    asyncio.run(run())


def test_a_request_after_a_pause_is_answered_and_an_answered_connection_is_not_cut(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "head_s", SOON_S)

    async def run() -> None:
        with listen("127.0.0.1", 0) as listener:
            async with serving(llm, listener):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                for _ in range(2):
                    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                    with pytest.raises(TimeoutError):  # open between requests, longer than a head may take
                        async with asyncio.timeout(2 * SOON_S):
                            await reader.read(1)
                writer.close()

    asyncio.run(run())


def test_a_body_that_does_not_come_is_a_408(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BodyLimit, "seconds", SOON_S)

    async def run() -> None:
        with listen("127.0.0.1", 0) as listener:
            async with serving(llm, listener):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                writer.write(f'{head}Content-Length: 100\r\n\r\n{{"prompt"'.encode())
                async with asyncio.timeout(30):
                    answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 408 ")
                assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["type"] == "TimeoutError"
                writer.close()

    asyncio.run(run())


def test_a_stream_that_is_never_read_is_cut_off_and_its_place_is_free(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "stall_s", SOON_S)
    body = {"prompt": "a", "n": 8, "max_tokens": 600, "ignore_eos": True, "stream": True, "logprobs": 5}

    async def run() -> None:
        with listen("127.0.0.1", 0) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            async with serving(llm, listener) as admission:
                client = socket.create_connection(listener.getsockname())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                content = json.dumps(body).encode()
                head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
                await until(lambda: admission.in_flight)
                await until(lambda: not admission.in_flight)
                client.settimeout(30)
                got = b""
                while chunk := client.recv(1 << 16):
                    got += chunk
                assert got.startswith(b"HTTP/1.1 200 ") and b"[DONE]" not in got
                assert await llm.reset_prefix_cache(), "its blocks are free"

    asyncio.run(run())


def test_a_connection_probes_for_a_client_whose_machine_is_gone() -> None:
    with listen("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_the_deadline_of_a_stream_holds_whichever_task_asks_for_its_next_output(llm: AsyncLLM) -> None:
    service = Service(llm, Models(llm, ["shop"], "shop"), Admission(8, None), timeout_s=0.05)
    ended = []

    async def outputs() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def run() -> None:
        found = service.run(3, outputs())
        assert await asyncio.create_task(anext(found)) == 1 and service.admission.in_flight == 3
        with pytest.raises(TimeoutError):
            await anext(found)

    asyncio.run(run())
    assert ended and service.admission.in_flight == 0
