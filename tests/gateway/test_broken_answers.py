"""The gateway before backends that end their answers too early: what the client gets, and what is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from engine.gateway.app import create_app
from engine.gateway.budgeter import estimated_tokens
from engine.gateway.config import GatewaySettings
from engine.gateway.proxy import Gateway
from engine.server.answers import EventStream
from tests.gateway.misbehaving import DONE, EVENTS, JSON, Script, backend, events, part, whole, whole_body
from tests.gateway.test_hostile import counted, error

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PATHS = pytest.mark.parametrize("path", [CHAT, TEXT])
DEAD = json.dumps({"error": {"message": "the engine died", "code": 500}}).encode()
PROMPT = "Hello you"
MESSAGES = [{"role": "user", "content": PROMPT}]
KEY = {"Authorization": "Bearer k"}
ADMIN = {"Authorization": "Bearer root"}


def before_the_first_byte(path: str) -> dict[str, tuple[Script, int, str]]:
    """Faults of streams: name -> script, status for the client if no other backend answers, outcome."""
    one = part(path, "one")
    return {
        "nothing": (Script(b""), 502, "broken"),
        "nothing, chunked": (Script(b"", framing="chunked"), 502, "broken"),
        "rubbish": (Script(b"hello world\n"), 502, "broken"),
        "rubbish lines": (Script(b"hello\n\nworld\n\n"), 502, "broken"),
        "only comments": (Script(b": ping\n\n: ping\n\n"), 502, "broken"),
        "only [DONE]": (Script(DONE), 502, "broken"),
        "no JSON": (Script(events(b"data: {\n\n", one, DONE)), 502, "broken"),
        "only usage": (Script(events({"choices": [], "usage": {"total_tokens": 9}}, DONE)), 502, "broken"),
        "half an event": (Script(events(one)[:20]), 502, "broken"),
        "chunked, cut": (Script(b"", framing="chunked", missing=1), 502, "broken"),
        "too short": (Script(events(one)[:20], framing="length", missing=90), 502, "broken"),
        "reset": (Script(b"", end="reset"), 503, "broken"),
        "stalls": (Script(b": ping\n\n", end="stall"), 504, "timeout"),
        "error first": (Script(events({"error": {"message": "dead", "code": 500}}, DONE)), 500, "server_error"),
        "error and end": (Script(events({"error": {"message": "dead", "code": 500}})), 500, "server_error"),
        "a 500": (Script(DEAD, JSON, 500, "length"), 500, "server_error"),
        "a page": (Script(b"<html>", "text/html", framing="length"), 502, "broken"),
    }  # fmt: skip


def after_the_first_byte(path: str) -> dict[str, tuple[Script, int]]:
    """Faults of streams that have begun: name -> script, and the code of the error event."""
    one, last = part(path, "é"), part(path, "", "stop")
    two = events(one, one)
    return {
        "clean end": (Script(events(one)), 502),
        "clean end, chunked": (Script(events(one), framing="chunked"), 502),
        "no [DONE]": (Script(events(one, last)), 502),
        "cut in an event": (Script(two[:-20], framing="chunked"), 502),
        "cut in a character": (Script(two[: two.rindex("é".encode()) + 1]), 502),
        "cut in [DONE]": (Script(events(one, last, DONE[:-2])), 502),
        "rubbish": (Script(events(one, b"data: rubbish\n\n", last, DONE)), 502),
        "no last chunk": (Script(events(one), framing="chunked", missing=1), 502),
        "too short": (Script(events(one), framing="length", missing=9), 502),
        "no finish_reason": (Script(events(one, DONE)), 502),
        "stalls": (Script(events(one), end="stall"), 504),
    }


def no_streams(path: str) -> dict[str, tuple[Script, int, str]]:
    """Faults of whole answers."""
    body = whole_body(path, "x")
    content = json.dumps(body).encode()
    [choice] = body["choices"]

    def found(body: Any) -> Script:
        return Script(json.dumps(body).encode(), JSON, framing="length")

    return {
        "nothing": (Script(b"", JSON), 502, "broken"),
        "{}": (found({}), 502, "broken"),
        "no choices": (found({"choices": []}), 502, "broken"),
        "another shape": (found({"choices": [{"index": 0, "finish_reason": "stop"}]}), 502, "broken"),
        "unfinished": (found({"choices": [choice | {"finish_reason": None}]}), 502, "broken"),
        "a list": (found([body]), 502, "broken"),
        "cut": (Script(content[:-9], JSON), 502, "broken"),
        "too short": (Script(content, JSON, framing="length", missing=9), 502, "broken"),
        "no last chunk": (Script(content[:-1], JSON, framing="chunked", missing=1), 502, "broken"),
        "reset": (Script(b"", JSON, end="reset"), 503, "broken"),
        "stalls": (Script(content[:9], JSON, framing="length", missing=9, end="stall"), 504, "timeout"),
        "a 500": (Script(DEAD, JSON, 500, "length"), 500, "server_error"),
        "a 500 page": (Script(b"<html>", "text/html", 500, "length"), 500, "server_error"),
        "an error as 200": (Script(DEAD, JSON, framing="length"), 500, "server_error"),
    }


@contextmanager
def gateway(*scripts: Script, **settings: Any) -> Iterator[tuple[TestClient, Gateway, list[list[Any]]]]:
    """Run a gateway over these backends, a, b, ..., asked in turn; return the requests that each got."""
    with ExitStack() as stack:
        found = [stack.enter_context(backend(script)) for script in scripts]
        listed = [{"name": name, "url": url} for name, (url, _) in zip("abc", found, strict=False)]
        stalls = any(script.end == "stall" for script in scripts)
        given = {
            "policy": "least-loaded", "backends": listed, "timeout_s": 0.5 if stalls else 30,
            "tenants": [{"name": "t", "api_key": "k"}], "admin_key": "root", "health": {"every_s": 100},
        }  # fmt: skip
        made = Gateway(GatewaySettings.model_validate(given | settings))
        client = stack.enter_context(TestClient(create_app(made)))
        yield client, made, [got for _, got in found]


def ask(client: TestClient, path: str, *, stream: bool) -> httpx.Response:
    asked = {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPT}
    return client.post(path, json={"model": "shop", "stream": stream, **asked}, headers=KEY)


def figures(client: TestClient) -> dict[tuple[str, ...], float]:
    client.headers.update(ADMIN)
    return counted(client)


def text_of(response: httpx.Response) -> str:
    """Return the text of a whole answer."""
    path = response.url.path
    if not response.headers["content-type"].startswith(EVENTS):
        [choice] = response.json()["choices"]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    stream = EventStream(path)
    chunks = [event.content for event in stream.feed(response.content) if event.content]
    assert stream.fault is None, stream.fault
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(each["text"] if "text" in each else each["delta"]["content"] for each in choices)


BEFORE = [(name, True) for name in before_the_first_byte(TEXT)] + [(name, False) for name in no_streams(TEXT)]


@PATHS
@pytest.mark.parametrize(("name", "stream"), BEFORE)
def test_a_fault_before_the_first_byte_is_an_error_or_another_backends_answer(
    path: str, name: str, stream: bool
) -> None:
    script, status, outcome = (before_the_first_byte if stream else no_streams)(path)[name]
    with gateway(script) as (client, made, _):
        error(ask(client, path, stream=stream), status)
        found = figures(client)
        assert found["gateway_attempts_total", "a", outcome] == 1
        assert found["gateway_responses_total", "5xx", "t"] == 1
        assert ("gateway_tokens_total", "t") not in found, "the tenant pays for no answer"
        assert made.backends[0].num_failed == 1 and made.backends[0].load == 0
    with gateway(script, whole(path, stream=stream)) as (client, made, got):
        assert text_of(ask(client, path, stream=stream)) == "good"
        assert [len(each) for each in got] == [1, 1]
        found = figures(client)
        assert (
            found["gateway_attempts_total", "a", outcome] == found["gateway_attempts_total", "b", "ok"] == 1
        )
        assert found["gateway_responses_total", "2xx", "t"] == found["gateway_retries_total",] == 1
        assert found["gateway_tokens_total", "t"] == 7


@PATHS
@pytest.mark.parametrize("name", after_the_first_byte(TEXT))
def test_a_stream_that_breaks_off_later_ends_with_an_error_event_and_counts_as_failed(
    path: str, name: str
) -> None:
    script, code = after_the_first_byte(path)[name]
    with gateway(script, whole(path, stream=True)) as (client, made, got):
        response = ask(client, path, stream=True)
        assert response.status_code == 200 and [len(each) for each in got] == [1, 0]
        stream = EventStream(path)
        *begun, last = [event.content for event in stream.feed(response.content)]
        assert begun[0] == part(path, "é") and None not in begun, "whole events without [DONE]"
        assert last is not None and last["error"]["code"] == code and "broke off" in last["error"]["message"]
        assert stream.num_chunks == len(begun) and response.content.endswith(b"}\n\n")
        found = figures(client)
        assert found["gateway_attempts_total", "a", "timeout" if code == 504 else "broken"] == 1
        assert found["gateway_responses_total", "5xx", "t"] == 1
        prompt = estimated_tokens(MESSAGES if path == CHAT else PROMPT)
        assert found["gateway_tokens_total", "t"] == prompt + len(begun)
        assert made.backends[0].num_failed == 1 and made.backends[0].load == 0


@PATHS
@pytest.mark.parametrize(("code", "outcome"), [(500, "server_error"), (400, "client_error")])
def test_an_error_event_of_the_backend_passes_as_it_is_and_is_counted(
    path: str, code: int, outcome: str
) -> None:
    script = Script(
        events(part(path, "a"), {"error": {"message": "x", "code": code}}, DONE), framing="chunked"
    )
    with gateway(script, whole(path, stream=True)) as (client, made, _):
        assert ask(client, path, stream=True).content == script.content
        found = figures(client)
        assert found["gateway_attempts_total", "a", outcome] == 1
        assert found["gateway_responses_total", f"{code // 100}xx", "t"] == 1
        assert made.backends[0].num_failed == (code == 500)


@PATHS
def test_a_whole_answer_is_one_however_its_connection_ends(path: str) -> None:
    good = whole(path, stream=True)
    for end in (
        good, replace(good, framing="close"), replace(good, missing=1), replace(good, framing="length", missing=9),
        replace(good, missing=1, end="stall"),
    ):  # fmt: skip
        with gateway(end) as (client, made, _):
            assert text_of(ask(client, path, stream=True)) == "good"
            assert figures(client)["gateway_attempts_total", "a", "ok"] == 1
            assert made.backends[0].num_failed == made.backends[0].load == 0


def test_a_connection_is_used_again_after_a_whole_stream() -> None:
    with gateway(whole(TEXT, stream=True)) as (client, made, got):
        made.client = httpx.AsyncClient()  # one pool; a gateway has several
        assert [text_of(ask(client, TEXT, stream=True)) for _ in range(3)] == ["good"] * 3
        assert len({each["from"] for each in got[0]}) == 1


def test_every_backend_is_asked_before_a_request_fails_within_the_limits() -> None:
    bad, good = Script(b""), whole(TEXT, stream=True)
    with gateway(bad, bad, good) as (client, _, got):
        assert [text_of(ask(client, TEXT, stream=True)) for _ in range(4)] == ["good"] * 4
        assert len(got[2]) == 4
    with gateway(bad, bad, good, retries={"most": 1}) as (client, _, got):
        message = error(ask(client, TEXT, stream=True), 502)["message"]
        assert (
            message.startswith("2 backends failed, and retries.most is 1; the last one failed: ")
            and not got[2]
        )
    with gateway(bad, good, retries={"budget": 0, "least_per_s": 0.1}) as (client, _, got):
        assert text_of(ask(client, TEXT, stream=True)) == "good"
        message = error(ask(client, TEXT, stream=True), 502)["message"]
        assert message.startswith("a backend failed, and the retry budget is used up; the last one failed: ")


def test_a_request_that_two_backends_answer_with_500_reaches_no_third_one() -> None:
    dead = Script(DEAD, JSON, 500, "length")
    with gateway(dead, dead, whole(TEXT, stream=False), retries={"most": 9}) as (client, _, got):
        assert error(ask(client, TEXT, stream=False), 500)["message"] == "the engine died"
        assert [len(each) for each in got] == [1, 1, 0]


@pytest.mark.parametrize(
    "script", [Script(b"{}", JSON, framing="length"), Script(b"", JSON), Script(DEAD, JSON, 500)]
)
def test_a_shadow_that_gives_no_whole_answer_is_counted_as_failed(script: Script) -> None:
    with gateway(whole(TEXT, stream=False), script, shadow={"backend": "b"}) as (client, made, _):
        assert text_of(ask(client, TEXT, stream=False)) == "good"
        while made._background:
            client.get("/health")
        assert (made.shadowed.num_failed, made.shadowed.num_compared) == (1, 0)


def test_a_canary_whose_streams_break_off_is_rolled_back() -> None:
    with ExitStack() as stack:
        (good, _), (bad, _) = (
            stack.enter_context(backend(each))
            for each in (whole(TEXT, stream=True), after_the_first_byte(TEXT)["no [DONE]"][0])
        )
        settings = {
            "backends": [{"name": "a", "url": good}, {"name": "b", "url": bad, "version": "new"}],
            "canary": {"version": "new", "share": 0.5, "watch": {"first_look": 10}},
            "breaker": {"failures": 1000}, "health": {"every_s": 100},
        }  # fmt: skip
        made = Gateway(GatewaySettings.model_validate(settings))
        client = stack.enter_context(TestClient(create_app(made)))
        for number in range(40):
            client.post(TEXT, json={"prompt": "Hi", "stream": True, "user": f"user-{number}"})
        assert made.canary_watch is not None and made.canary_watch.last is not None
        assert made.canary_watch.last.is_worse and client.get("/gateway/state").json()["canary"]["share"] == 0
