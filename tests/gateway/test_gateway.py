"""The gateway over backends that answer, fail, break off or wait; and over two real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from engine.gateway.app import create_app
from engine.gateway.config import GatewaySettings
from engine.gateway.proxy import Gateway

Answer = Callable[[httpx.Request], httpx.Response]


def answer(text: str, tokens: int = 7) -> Answer:
    usage = {"prompt_tokens": 3, "completion_tokens": tokens - 3, "total_tokens": tokens}
    body = {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}], "usage": usage}
    return lambda request: httpx.Response(200, json=body)


def failing(status: int) -> Answer:
    return lambda request: httpx.Response(status, json={"error": {"message": "no"}})


def refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset", request=request)


def gateway(answers: dict[str, Answer], **settings: Any) -> tuple[TestClient, Gateway, list[tuple[str, Any]]]:
    """Return a client of a gateway over these backends, and the requests that the backends got."""
    got: list[tuple[str, Any]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "shop"}]})
        got.append((request.url.host, json.loads(request.content)))
        return answers[request.url.host](request)

    listed = [{"name": name, "url": f"http://{name}"} for name in answers if name != "fallback"]
    made = Gateway(GatewaySettings.model_validate({"backends": listed, **settings}))
    made.client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return TestClient(create_app(made)), made, got


def ask(client: TestClient, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    return client.post("/v1/completions", json={"model": "shop", "prompt": "Hello", **more}, headers=headers)


def test_an_answer_passes_through_with_the_backends_name_and_a_decision() -> None:
    client, _, got = gateway({"a": answer("hi")})
    response = ask(client, headers={"X-Request-Id": "r-1"})
    assert response.json()["choices"][0]["text"] == "hi" and response.headers["x-prep-backend"] == "a"
    assert got[0][1]["prompt"] == "Hello"
    found = client.get("/gateway/decisions/r-1").json()
    assert found["backend"] == "a" and found["ended"] == "ok" and "r-1 went to a" in found["sentence"]
    assert client.get("/gateway/decisions").json()[0]["request_id"] == "r-1"
    assert len(client.get("/gateway/decisions?last=1").json()) == 1
    assert client.get("/gateway/decisions?last=0").status_code == 400
    assert client.get("/gateway/decisions/other").status_code == 404
    [backend] = client.get("/gateway/state").json()["backends"]
    assert (backend["load"], backend["requests"], backend["failed"]) == (0, 1, 0)


@pytest.mark.parametrize("fault", [failing(500), failing(502), failing(503), failing(504), refused, broken])
def test_another_backend_is_asked_when_one_fails_before_its_first_byte(fault: Answer) -> None:
    client, made, got = gateway({"a": fault, "b": answer("hi")}, policy="round-robin")
    assert [ask(client).json()["choices"][0]["text"] for _ in range(3)] == ["hi"] * 3
    assert {name for name, _ in got} == {"a", "b"}
    assert made.backends[0].num_failed >= 1 and made.backends[0].load == made.backends[1].load == 0


def test_wrong_requests_and_full_queues_are_the_clients_and_not_tried_again() -> None:
    for status in (400, 404, 429, 501):
        client, made, got = gateway({"a": failing(status), "b": failing(status)})
        assert ask(client).status_code == status and len(got) == 1
        assert [backend.num_failed for backend in made.backends] == [0, 0]


def test_the_breaker_keeps_requests_from_a_backend_that_fails() -> None:
    client, made, got = gateway(
        {"a": broken, "b": answer("hi")}, policy="round-robin", breaker={"failures": 2, "open_s": 1000}
    )
    for _ in range(12):
        assert ask(client).status_code == 200
    assert [name for name, _ in got].count("a") == 2 and made.backends[0].breaker.state == "open"


def test_a_refused_connection_is_enough() -> None:
    client, made, got = gateway({"a": refused, "b": answer("hi")}, policy="round-robin")
    assert {ask(client).status_code for _ in range(12)} == {200}
    assert [name for name, _ in got].count("a") == 1 and not made.backends[0].is_healthy
    asyncio.run(made._look(made.backends[0]))
    assert made.backends[0].is_healthy, "its health check answers again"


def test_retries_do_not_multiply_a_general_failure() -> None:
    client, _, got = gateway(
        {"a": failing(503), "b": failing(503)}, breaker={"failures": 1000}, retries={"most": 1, "budget": 0.1}
    )
    assert {ask(client).status_code for _ in range(40)} == {503}
    assert len(got) <= 40 + 4 + 10


def test_the_fallback_is_asked_only_when_no_backend_can_answer_and_at_its_rate() -> None:
    client, _, got = gateway(
        {"a": refused, "fallback": answer("from far away")},
        fallback={"name": "managed", "url": "http://fallback"}, fallback_per_minute=2, retries={"most": 0},
    )  # fmt: skip
    answers = [ask(client) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert answers[0].headers["x-prep-backend"] == "managed"
    assert "fallback's rate" in answers[2].json()["error"]["message"]
    client, _, got = gateway({"a": answer("hi"), "fallback": answer("far")},
                             fallback={"name": "managed", "url": "http://fallback"})  # fmt: skip
    assert ask(client).headers["x-prep-backend"] == "a" and len(got) == 1


def test_tenants_have_keys_rates_and_quotas() -> None:
    tenants = [
        {"name": "fast", "api_key": "k1", "requests_per_s": 0.001, "burst": 2},
        {"name": "small", "api_key": "k2", "tokens_per_day": 10},
    ]
    client, _, _ = gateway({"a": answer("hi", tokens=7)}, tenants=tenants, admin_key="root")

    def status(key: str) -> int:
        return ask(client, headers={"Authorization": f"Bearer {key}"}).status_code

    assert ask(client).status_code == status("wrong") == client.get("/gateway/state").status_code == 401
    assert [status("k1") for _ in range(3)] == [200, 200, 429]
    assert [status("k2") for _ in range(3)] == [200, 200, 429]
    refused = ask(client, headers={"Authorization": "Bearer k1"})
    assert int(refused.headers["retry-after"]) > 1 and "requests/s" in refused.json()["error"]["message"]
    assert client.get("/gateway/state", headers={"Authorization": "Bearer k2"}).status_code == 401
    closed, _, _ = gateway({"a": answer("hi")}, tenants=tenants)
    assert closed.get("/gateway/decisions", headers={"Authorization": "Bearer k2"}).status_code == 401
    state = client.get("/gateway/state", headers={"Authorization": "Bearer root"}).json()
    assert [(tenant["requests"], tenant["tokens"]) for tenant in state["tenants"]] == [(2, 14), (2, 14)]
    assert client.get("/health").status_code == 200, "open to probes"


def test_a_shadow_gets_a_copy_and_its_answers_are_compared() -> None:
    client, made, got = gateway(
        {"a": answer("hi"), "b": answer("ho")}, shadow={"backend": "b"}, policy="round-robin"
    )
    with client:
        for _ in range(4):
            assert ask(client, user="u").status_code == 200
        while made._background:
            client.get("/health")
    compared = made.shadowed
    assert compared.num_compared == 2 and compared.num_different == 2 and compared.num_failed == 0
    assert compared.last_difference == {"a": ["hi"], "b": ["ho"]}


def test_long_conversations_are_trimmed_and_the_decision_says_so() -> None:
    client, _, got = gateway({"a": answer("hi")}, max_prompt_tokens=100)
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": "word " * 40} for n in range(9)]
    messages = [{"role": "system", "content": "Be kind."}, *turns]
    body = {"model": "shop", "messages": messages}
    client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "long"})
    sent = got[0][1]["messages"]
    assert sent[0] == messages[0] and sent[-1] == messages[-1] and len(sent) < len(messages)
    trimmed = client.get("/gateway/decisions/long").json()["trimmed"]
    assert trimmed["after"] <= 100 < trimmed["before"] and trimmed["dropped"] == len(messages) - len(sent)
    assert ask(client, prompt="x" * 1000).status_code == 400


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"[" * 100_000])
def test_a_body_that_is_no_request_reaches_no_backend(content: bytes) -> None:
    client, _, got = gateway({"a": answer("hi")})
    response = client.post("/v1/completions", content=content)
    assert response.status_code == 400 and "error" in response.json() and not got


def test_a_canary_is_rolled_back_at_once() -> None:
    settings = {
        "backends": [
            {"name": "a", "url": "http://a"}, {"name": "b", "url": "http://b", "version": "new"},
        ],
        "canary": {"version": "new", "share": 1.0},
    }  # fmt: skip
    client, _, got = gateway({"a": answer("old"), "b": answer("new")}, **settings)
    assert ask(client).json()["choices"][0]["text"] == "new"
    assert client.post("/gateway/canary", json={"share": 0}).json() == {"version": "new", "share": 0.0}
    assert ask(client).json()["choices"][0]["text"] == "old"
    assert client.post("/gateway/canary", json={"share": 2}).status_code == 400
    assert gateway({"a": answer("x")})[0].post("/gateway/canary", json={"share": 0}).status_code == 400


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Any]]]:
    """A real gateway process over two real servers."""
    from contextlib import ExitStack

    from tests.server.processes import start_gateway, start_server

    with ExitStack() as stack:
        log = tmp_path_factory.mktemp("gateway")
        servers = [start_server(stack, log, "--num-gpu-blocks-override", "256") for _ in range(2)]
        listed = "".join(f"  - {{name: s{n}, url: '{server.url}'}}\n" for n, server in enumerate(servers))
        file = Path(log / "gateway.yaml")
        file.write_text(f"policy: prefix-affinity\nhealth: {{every_s: 0.2}}\nbackends:\n{listed}")
        yield start_gateway(stack, log, file).url, servers


@pytest.mark.slow
def test_two_real_servers_stream_share_prefixes_and_survive_a_kill(
    two_servers: tuple[str, list[Any]],
) -> None:
    url, servers = two_servers
    with httpx.Client(base_url=url, timeout=60) as client:
        homes: dict[str, set[str]] = {"ann": set(), "bob": set()}
        for turn in range(3):
            for name, home in homes.items():
                body = {"prompt": f"{name} asks " * 60 + "more " * turn, "max_tokens": 6, "temperature": 0}
                home.add(client.post("/v1/completions", json=body).headers["x-prep-backend"])
        assert all(len(home) == 1 for home in homes.values()) and homes["ann"] != homes["bob"]
        with client.stream(
            "POST", "/v1/completions", json={"prompt": "Hi", "max_tokens": 5, "stream": True}
        ) as one:
            lines = [line for line in one.iter_lines() if line]
        assert lines[-1] == "data: [DONE]" and lines[0].startswith("data: {")
        long = {"prompt": "Hi", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=long) as leaving:
            assert next(leaving.iter_lines()).startswith("data: ")
        while any(backend["load"] for backend in client.get("/gateway/state").json()["backends"]):
            pass
        assert any(each["ended"] == "client left" for each in client.get("/gateway/decisions").json())
        servers[0].kill()
        answers = [
            client.post("/v1/completions", json={"prompt": f"After {n}", "max_tokens": 3}) for n in range(8)
        ]
        assert [answer.status_code for answer in answers] == [200] * 8
        assert {answer.headers["x-prep-backend"] for answer in answers} == {"s1"}
        found = client.get("/gateway/decisions").json()[0]
        assert "s1" in found["sentence"] and found["ended"] == "ok"


def test_backends_come_and_go_while_requests_run() -> None:
    client, made, got = gateway({"a": answer("hi"), "b": answer("ho")}, admin_key="k")
    key = {"Authorization": "Bearer k"}
    assert client.delete("/gateway/backends/b", headers=key).json() == {"name": "b"}
    assert {ask(client).headers["x-prep-backend"] for _ in range(4)} == {"a"}
    new = {"name": "c", "url": "http://b"}
    assert client.post("/gateway/backends", json=new, headers=key).json()["version"] == "stable"
    assert client.post("/gateway/backends/a/drain", headers=key).json() == {"name": "a", "load": 0}
    assert {ask(client).headers["x-prep-backend"] for _ in range(4)} == {"c"}
    made.backends[0].load = 1
    assert client.delete("/gateway/backends/a", headers=key).status_code == 409, "it has a request"
    decision = client.get("/gateway/decisions", headers=key).json()[0]
    assert {each["name"]: each["excluded"] for each in decision["seen"]} == {"a": "draining", "c": ""}
    assert 'backend="c"' in client.get("/metrics", headers=key).text


@pytest.mark.parametrize(
    ("body", "status"),
    [({"name": "a", "url": "http://x"}, 409), ({"name": "d"}, 400), ({"name": "d", "url": "ftp://x"}, 400)],
)
def test_wrong_backends_are_refused(body: dict[str, str], status: int) -> None:
    client, made, _ = gateway({"a": answer("hi")}, admin_key="k")
    response = client.post("/gateway/backends", json=body, headers={"Authorization": "Bearer k"})
    assert response.status_code == status and len(made.backends) == 1
    assert client.post("/gateway/backends", json=body).status_code == 401
    assert client.delete("/gateway/backends/a").status_code == 401
    unknown = client.post("/gateway/backends/x/drain", headers={"Authorization": "Bearer k"})
    assert unknown.status_code == 404 and "there are: a" in unknown.text


def test_a_held_request_is_given_up_in_time_when_no_backend_comes() -> None:
    client, made, _ = gateway({"a": answer("hi")}, hold={"timeout_s": 0.01})
    made.remove("a")
    response = ask(client)
    assert response.status_code == 503 and "no backend came within 0.01 s" in response.text
    assert int(response.headers["retry-after"]) > 0 and made.num_held == 0
