"""The debug port over the real scheduler, without a model: who may call, what stops, what a late reader gets."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from engine.debug.breakpoints import EVENTS, Breakpoint, DebugError
from engine.debug.feed import ANSWER_LINES, CHUNK_LINES, TraceFeed
from tests.core.debug_engine import SmallEngine, while_stepping


@pytest.fixture
def engine() -> Iterator[SmallEngine]:
    engine = SmallEngine()
    yield engine
    engine.close()


def call(
    engine: SmallEngine, path: str, body: Any = None, *, token: str | None = "", host: str = ""
) -> tuple[int, Any]:
    """Status and parsed answer. body: None is a GET."""
    address, _, real = engine.debug.url.partition("/?token=")
    headers = {} if token is None else {"Authorization": f"Bearer {token or real}"}
    if host:
        headers["Host"] = host
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers
            content = answer.read()
            is_json = answer.headers["Content-Type"] == "application/json"
            return answer.status, json.loads(content) if is_json else content
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("token", [None, "wrong", "ü"])
@pytest.mark.parametrize("path,body", [("/debug/info", None), ("/debug/trace", None), ("/debug/pause", {})])
def test_without_the_token_nothing_is_shown_and_nothing_done(
    engine: SmallEngine, path: str, body: Any, token: str | None
) -> None:
    if token == "ü":
        path, token = f"{path}?token=%C3%BC", None
    status, answer = call(engine, path, body, token=token)
    assert status == 403 and "the whole address that the engine printed" in answer["error"]
    assert not engine.debug.control.describe()["paused"]


def test_a_page_whose_name_points_here_is_refused(engine: SmallEngine) -> None:
    status, answer = call(engine, "/debug/info", host="evil.example:80")
    assert status == 403 and "evil.example" in answer["error"]
    assert call(engine, "/debug/info", host="localhost:1")[0] == 200


def test_what_the_port_does_not_know_is_answered_with_what_it_does(engine: SmallEngine) -> None:
    for path, body in [("/debug/fork", {}), ("/debug/memory", None), ("/other", {})]:
        status, answer = call(engine, path, body)
        assert status == 404 and "/debug/" in answer["error"]
    for path, body in [
        ("/debug/step", {"n": 0}),
        ("/debug/step", []),
        ("/debug/resume", {"steps_per_s": "fast"}),
        ("/debug/breakpoints", {}),
        ("/debug/breakpoints", {"breakpoints": [{"event": "crash"}]}),
        ("/debug/breakpoints", {"breakpoints": [{"free_below": 0}]}),
        ("/debug/abort", {}),
        ("/debug/trace?since=-1", None),
        ("/debug/trace?wait=900", None),
    ]:
        status, answer = call(engine, path, body)
        assert status == 400 and len(answer["error"]) > 20, path


@pytest.mark.parametrize(
    "request_bytes,status",
    [
        (
            b"POST /debug/step?token=TOKEN HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n"
            + b"[" * 50_000,
            400,
        ),
        (
            b"POST /debug/step?token=TOKEN HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n",
            400,
        ),
        (b"POST /debug/step?token=TOKEN HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n", 400),
        (b"PUT /debug/step?token=TOKEN HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /debug/info?token=TOKEN HTTP/1.0\r\n\r\n", 403),
    ],
    ids=["deep", "huge", "no length", "no such method", "long address", "no host"],
)
def test_what_no_client_of_ours_sends_is_answered_in_words(
    engine: SmallEngine, request_bytes: bytes, status: int
) -> None:
    address, _, token = engine.debug.url.partition("/?token=")
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10) as client:
        client.sendall(request_bytes.replace(b"TOKEN", token.encode()))
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == status
        assert json.loads(answer.read())["error"]
    assert call(engine, "/debug/info")[0] == 200


@pytest.mark.parametrize(
    "action,wish,named",
    [
        ("inject", {"prompt_token_ids": [1], "request_id": [1]}, "request_id"),
        ("inject", {"prompt_token_ids": [1], "priority": "high"}, "priority"),
        ("inject", {"prompt_token_ids": [-1]}, "from 0 on"),
        ("inject", {"prompt_token_ids": [1], "max_tokens": -4}, "max_tokens"),
        ("resume", {"steps_per_s": True}, "steps_per_s"),
        ("breakpoints", {"breakpoints": [{"event": None}]}, "breakpoint"),
    ],
)
def test_a_wish_of_the_wrong_kind_never_reaches_the_engine(
    engine: SmallEngine, action: str, wish: dict[str, Any], named: str
) -> None:
    status, answer = while_stepping(engine, lambda: call(engine, f"/debug/{action}", wish))
    assert status == 400 and named in answer["error"]


def test_a_late_reader_gets_every_line_from_the_header_on(engine: SmallEngine) -> None:
    for number in range(40):
        engine.add(f"r{number}", max_tokens=100)
    while engine.scheduler.has_unfinished():
        engine.step()
    lines: list[dict[str, Any]] = []
    since = 0
    while len(lines) < engine.debug.feed.num_lines:
        status, content = call(engine, f"/debug/trace?since={since}")
        assert status == 200 and content.endswith(b"\n")
        got = [json.loads(line) for line in content.splitlines()]
        lines += got
        since += len(got)
    assert [line["t"] for line in lines[:2]] == ["hdr", "add"]
    steps = [line["i"] for line in lines if line["t"] == "step"]
    assert steps == list(range(len(steps))) and len(steps) > CHUNK_LINES


@pytest.mark.parametrize("num_lines", [0, 1, CHUNK_LINES - 1, CHUNK_LINES, 3 * CHUNK_LINES + 7, ANSWER_LINES])
def test_a_feed_gives_each_line_once_from_wherever_one_starts(num_lines: int) -> None:
    feed = TraceFeed()
    lines = [b'{"line":%d}\n' % number for number in range(num_lines)]
    for line in lines:
        feed.append(line)
    for start in {0, 1, num_lines // 2, max(0, num_lines - 1), num_lines, num_lines + 5}:
        since, read = start, b""
        while True:
            part, following = feed.read(since)
            if not part:
                break
            read, since = read + part, following
        assert read == b"".join(lines[start:])


def test_a_feed_that_has_grown_too_large_says_so_and_keeps_what_it_has() -> None:
    feed = TraceFeed(max_bytes=100)
    for number in range(3 * CHUNK_LINES):
        feed.append(b'{"line":%d}\n' % number)
    assert feed.num_lines == CHUNK_LINES
    assert feed.end is not None and "the engine goes on" in feed.end
    assert feed.read(CHUNK_LINES, wait_s=10) == (b"", CHUNK_LINES), (
        "the reader does not wait for what will not come"
    )


def test_a_paused_engine_takes_requests_and_aborts(engine: SmallEngine) -> None:
    engine.add("a")
    assert engine.step()
    assert call(engine, "/debug/pause", {})[1]["paused"]
    assert not engine.step()
    status, answer = while_stepping(
        engine, lambda: call(engine, "/debug/inject", {"prompt_token_ids": [1, 2, 3], "max_tokens": 2})
    )
    assert (status, answer) == (200, {"request_ids": ["injected-1"]})
    status, answer = while_stepping(engine, lambda: call(engine, "/debug/abort", {"request_id": "a"}))
    assert (status, answer) == (200, {"aborted": "a"})
    assert [(output.request_id, output.finish_reason) for output in engine.outputs][-1] == ("a", "abort")
    assert list(engine.scheduler.requests) == ["injected-1"]
    assert call(engine, "/debug/info")[1]["step"] == 0, "none of this was a step"
    kinds = [json.loads(line)["t"] for line in call(engine, "/debug/trace")[1].splitlines()]
    assert kinds == ["hdr", "add", "step", "add", "abort"]


def test_what_the_door_refuses_is_told_to_who_asked_and_to_nobody_else(engine: SmallEngine) -> None:
    call(engine, "/debug/pause", {})
    for wish, words in [
        ({"prompt_token_ids": [1] * 500, "max_tokens": 9}, "the whole KV cache has"),
        ({"prompt_token_ids": []}, "no tokens"),
        ({"prompt": "text"}, "no tokenizer"),
        ({"prompt_token_ids": [1], "max_tokens": -3}, "max_tokens"),
    ]:
        status, answer = while_stepping(engine, lambda wish=wish: call(engine, "/debug/inject", wish))
        assert status == 400 and words in answer["error"]
    status, answer = while_stepping(engine, lambda: call(engine, "/debug/abort", {"request_id": "unknown"}))
    assert status == 400 and "unknown" in answer["error"]
    assert not engine.scheduler.requests


def test_steps_are_counted_and_then_it_is_paused(engine: SmallEngine) -> None:
    engine.add("a")
    call(engine, "/debug/pause", {})
    call(engine, "/debug/step", {"n": 3})
    assert [engine.step() for _ in range(5)] == [True, True, True, False, False]
    info = call(engine, "/debug/info")[1]
    assert info["paused"] and info["step"] == 2 and "requested steps" in info["stopped_by"]
    call(engine, "/debug/resume", {})
    assert all(engine.step() for _ in range(4))


@pytest.mark.parametrize("event", EVENTS)
def test_a_breakpoint_stops_after_the_first_step_with_its_event(event: str) -> None:
    def run(engine: SmallEngine) -> list[dict[str, Any]]:
        shared = dict(num_prompt=20, max_tokens=24)
        engine.add("a", **shared)
        engine.step()
        for name in "bcd":
            engine.add(name, **shared)
        while engine.scheduler.has_unfinished() and engine.step():
            pass
        engine.tracer.close()
        text, _ = engine.debug.feed.read(0)
        return [json.loads(line) for line in text.splitlines()]

    free = SmallEngine(num_blocks=18)
    records = run(free)
    free.close()
    names = {record["q"]: record["r"] for record in records if record["t"] == "add"}
    steps = [record for record in records if record["t"] == "step"]
    point = Breakpoint(event)
    due = next(record["i"] for record in steps if point.hit_by(record, names))

    engine = SmallEngine(num_blocks=18)
    engine.debug.control.set_breakpoints([point])
    stopped_at = [record["i"] for record in run(engine) if record["t"] == "step"][-1]
    assert stopped_at == due
    assert f"step {due}: {event}" in engine.debug.info()["stopped_by"]
    engine.close()


def test_a_breakpoint_on_one_request_and_on_free_blocks(engine: SmallEngine) -> None:
    engine.add("a", max_tokens=2)
    engine.add("b", max_tokens=4)
    point = Breakpoint.parse({"event": "finish", "request": "b"})
    engine.debug.control.set_breakpoints([point])
    while engine.step():
        pass
    assert "b" not in engine.scheduler.requests and "finish of b" in engine.debug.info()["stopped_by"]
    engine.debug.control.set_breakpoints([Breakpoint.parse({"free_below": 30})])
    engine.debug.control.resume()
    engine.add("c", num_prompt=60)
    while engine.step():
        pass
    assert engine.debug.info()["num_free_blocks"] < 30
    with pytest.raises(DebugError, match="fork"):
        Breakpoint.parse({"event": "fork"})


def test_a_reader_who_waits_gets_the_error_of_an_engine_that_dies(engine: SmallEngine) -> None:
    engine.add("a")
    engine.step()
    since = engine.debug.feed.num_lines
    waiting: list[Any] = []
    thread = threading.Thread(
        target=lambda: waiting.append(call(engine, f"/debug/trace?since={since}&wait=10"))
    )
    thread.start()
    engine.tracer.error(RuntimeError("out of luck"))
    thread.join()
    [record] = [json.loads(line) for line in waiting[0][1].splitlines()]
    assert record["t"] == "error" and record["message"] == "RuntimeError: out of luck"
    assert "died" in call(engine, "/debug/info")[1]["end"]
