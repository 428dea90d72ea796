"""The gateway between backends that answer garbage and clients that send it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from engine.gateway.limits import CircuitBreaker, RetryBudget
from engine.gateway.sending import Sending
from tests.gateway.test_gateway import Answer, answer, ask, failing, gateway


def garbage(status: int = 200, content: bytes = b"<html>", kind: str = "text/html") -> Answer:
    return lambda request: httpx.Response(status, content=content, headers={"content-type": kind})


def breaks_off(request: httpx.Request) -> httpx.Response:
    async def content() -> Any:
        yield b'{"choices": [{"te'
        raise httpx.ReadError("reset", request=request)

    return httpx.Response(200, content=content(), headers={"content-type": "application/json"})


def no_http(request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("illegal status line", request=request)


def too_late(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("", request=request)


FAULTS = {
    "html": (garbage(), 502, "broken"),
    "cut JSON": (garbage(content=b'{"choices": [', kind="application/json"), 502, "broken"),
    "a list": (garbage(content=b"[1]", kind="application/json"), 502, "broken"),
    "deep": (garbage(content=b"[" * 100_000, kind="application/json"), 502, "broken"),
    "empty": (garbage(content=b""), 502, "broken"),
    "bad gzip": (
        lambda _: httpx.Response(200, content=b"x", headers={"content-encoding": "gzip"}),
        502,
        "broken",
    ),
    "no HTTP": (no_http, 502, "broken"),
    "breaks off": (breaks_off, 503, "broken"),
    "too late": (too_late, 504, "timeout"),
}


def error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found = response.json()["error"]
    assert found["code"] == status and found["message"]
    return dict(found)


def counted(client: TestClient) -> dict[tuple[str, ...], float]:
    """Return the values of /metrics that are not 0, by name and labels in alphabetical order."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (each.name, *each.labels.values()): each.value
        for family in families
        for each in family.samples
        if each.value and not each.name.endswith("_created")
    }


@pytest.mark.parametrize("name", FAULTS)
def test_garbage_is_an_error_of_the_api_or_another_backends_answer(name: str) -> None:
    fault, status, outcome = FAULTS[name]
    client, made, _ = gateway({"a": fault})
    assert "no backend can answer" in error(ask(client), status)["message"]
    assert made.backends[0].load == 0 and made.backends[0].num_failed == 1
    assert counted(client)["gateway_attempts_total", "a", outcome] == 1
    client, made, _ = gateway({"a": fault, "b": answer("hi")}, policy="round-robin")
    assert [ask(client).json()["choices"][0]["text"] for _ in range(2)] == ["hi"] * 2
    assert counted(client)["gateway_retries_total",] >= 1
    assert counted(client)["gateway_responses_total", "2xx", ""] == 2


def test_a_stream_that_is_none_is_tried_elsewhere() -> None:
    for fault in (garbage(), answer("whole")):
        client, _, _ = gateway({"a": fault})
        assert "a stream was answered with" in error(ask(client, stream=True), 502)["message"]


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_an_error_page_becomes_an_error_of_the_api(status: int) -> None:
    client, _, _ = gateway({"a": garbage(status)}, retries={"most": 0})
    assert "backend a answered HTTP" in error(ask(client), status)["message"]
    assert client.get("/gateway/decisions").json()[0]["ended"] == f"HTTP {status}"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": ["x"]}, {"messages": [["x"]] * 900}, {"messages": {"role": "user"}}, {"messages": None},
        {"prompt": {}}, {"prompt": [["a"], 3]}, {"prompt": "\ud800"}, {"model": [1], "user": {}, "cache_salt": 7},
        {"stream_options": 5, "stream": True}, {"stop": float("nan")},
    ],
)  # fmt: skip
def test_strange_bodies_reach_the_backend_or_are_a_400(body: dict[str, Any]) -> None:
    client, _, _ = gateway({"a": answer("hi")}, policy="prefix-affinity", max_prompt_tokens=16)
    response = client.post("/v1/completions", content=json.dumps(body))
    assert response.status_code in (200, 400, 502), response.text
    if response.status_code != 200:
        error(response, response.status_code)


@pytest.mark.parametrize("stream", ["true", 1, [], "no"])
def test_stream_must_be_a_boolean(stream: Any) -> None:
    client, _, got = gateway({"a": answer("hi")})
    assert error(ask(client, stream=stream), 400)["param"] == "stream" and not got


@pytest.mark.parametrize(
    "path", ["/v1/load_lora_adapter", "/v1/../sleep", "/v1/%2e%2e/sleep", "/sleep", "/v1/nowhere"]
)
def test_the_administration_of_backends_is_not_reached(path: str) -> None:
    client, _, got = gateway({"a": answer("hi")})
    error(client.post(path, json={"lora_name": "x", "lora_path": "/etc"}), 404)
    error(client.get("/v1/completions"), 405)
    assert not got


def test_a_client_that_leaves_a_half_open_breaker_leaves_it_to_the_next_request() -> None:
    breaker = CircuitBreaker(failures=1, open_s=10)
    breaker.begin(0)
    breaker.record(0, ok=False)
    assert not breaker.allows(5) and breaker.allows(11)
    breaker.begin(11)
    assert not breaker.allows(11), "one request decides"
    breaker.record(12, ok=None)
    assert breaker.allows(12) and breaker.state == "half open"


def test_the_retry_budget_forgets_old_requests() -> None:
    budget = RetryBudget(0.1, least_per_s=1)
    for second in range(10_000):
        budget.request(float(second))
    assert len(budget._requests) <= RetryBudget.WINDOW_S + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_backend_before_the_first_byte_and_after(stream: bool) -> None:
    """The backend answers nothing, or one event: the client hangs up, and the request there is cancelled."""
    client, made, _ = gateway({"a": answer("never")})
    cancelled = []

    class Waiting(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            if stream:
                yield b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            cancelled.append(True)

    def handle(request: httpx.Request) -> httpx.Response:
        kind = "text/event-stream" if stream else "application/json"
        return httpx.Response(200, stream=Waiting(), headers={"content-type": kind})

    made.client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    content = json.dumps({"prompt": "a", "stream": stream}).encode()
    incoming = [{"type": "http.request", "body": content}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"", "query_string": b"",
        "headers": [], "http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("y", 1),
    }  # fmt: skip
    asyncio.run(client.app(scope, receive, send))
    assert cancelled and made.backends[0].load == 0
    assert counted(client)["gateway_attempts_total", "a", "client_left"] == 1
    assert counted(client)["gateway_responses_total", "4xx", ""] == 1 and made.backends[0].num_failed == 0


def test_a_tenant_pays_for_a_stream_that_it_leaves_before_the_usage_comes() -> None:
    client, made, _ = gateway({"a": answer("x")})
    events = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n' * 5

    async def leave() -> int:
        transport = httpx.MockTransport(
            lambda _: httpx.Response(200, content=events, headers={"content-type": "text/event-stream"})
        )
        request = _request("four words of it")
        _, decision = made.route.decide(request, 0.0)
        sending = Sending(
            httpx.AsyncClient(transport=transport), made.metrics, made.backends[0], request, decision
        )
        assert await sending.open("/v1/completions", {"stream": True}) is None
        async for _ in sending.chunks():
            break
        await sending.close()
        return sending.num_tokens - request.num_tokens

    assert asyncio.run(leave()) == 5


def _request(prompt: str) -> Any:
    from engine.gateway.backend import GatewayRequest

    return GatewayRequest.of("r", "t", {"prompt": prompt})


def test_the_metrics_of_the_gateway_need_the_admins_key() -> None:
    tenants = [{"name": "t", "api_key": "k"}]
    client, _, _ = gateway({"a": answer("hi", tokens=7)}, tenants=tenants, admin_key="root")
    assert ask(client, headers={"Authorization": "Bearer k"}).status_code == 200
    assert ask(client).status_code == client.get("/metrics").status_code == 401
    text = client.get("/metrics", headers={"Authorization": "Bearer root"}).text
    for line in (
        'gateway_responses_total{status="2xx",tenant="t"} 1.0', 'gateway_responses_total{status="4xx",tenant=""} 1.0',
        'gateway_attempts_total{backend="a",outcome="ok"} 1.0', 'gateway_tokens_total{tenant="t"} 7.0',
        'gateway_backend_up{backend="a"} 1.0',
    ):  # fmt: skip
        assert line in text


def test_a_failing_backend_is_down_in_the_metrics_until_its_breaker_closes() -> None:
    client, _, _ = gateway({"a": failing(503)}, breaker={"failures": 1, "open_s": 1000}, retries={"most": 0})
    assert counted(client)["gateway_backend_up", "a"] == 1
    ask(client)
    assert ("gateway_backend_up", "a") not in counted(client)
    assert counted(client)["gateway_attempts_total", "a", "server_error"] == 1
