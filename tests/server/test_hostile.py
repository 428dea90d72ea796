"""Requests that a hostile client may send: each is answered, and the server goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.server.errors import OF_THE_REQUEST
from engine.server.protocol import ChatCompletionRequest, CompletionRequest
from engine.server.request_log import RequestLog
from tests.server.conftest import application
from tests.server.test_api import HELLO, error

VALUES: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, -(10**30), float("nan"), float("inf"), "", "x", "\ud800", "a\0b", [], [None], [[]],
    {}, {"a": 1}, ["\ud800"], {"\ud800": 1}, 2**63 - 1, -(2**63), [1] * 5,
]  # fmt: skip


def post(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    """Send JSON that the client's own encoder would refuse."""
    return client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


@pytest.fixture
def client(llm: AsyncLLM, tmp_path: Path) -> TestClient:
    client, _ = application(llm)
    llm.llm_engine.stat_loggers.append(RequestLog(tmp_path / "log.jsonl", "shop", 16))
    return client


@pytest.mark.slow
@pytest.mark.parametrize("model", [CompletionRequest, ChatCompletionRequest])
def test_any_value_in_any_field_is_an_answer_or_the_clients_error(
    client: TestClient, llm: AsyncLLM, model: Any
) -> None:
    is_chat = model is ChatCompletionRequest
    path, body = (
        ("/v1/chat/completions", {"messages": HELLO}) if is_chat else ("/v1/completions", {"prompt": "a"})
    )
    for name in model.model_fields:
        for value in VALUES:
            response = post(client, path, {**body, "max_tokens": 2, name: value})
            assert response.status_code in (200, 400, 404, 501), (name, value, response.text)
    assert len(llm.llm_engine.stat_loggers) == 2, "none has failed"
    assert client.get("/metrics").status_code == 200


@pytest.mark.parametrize("request_id", ["a\nb", "\x1b[31m", "x" * 129])
def test_an_id_that_is_no_name_is_a_400(client: TestClient, request_id: str) -> None:
    body = {"prompt": "a", "max_tokens": 1, "request_id": request_id}
    assert error(post(client, "/v1/completions", body), 400)["param"] == "request_id"
    assert client.post("/v1/completions", json={**body, "request_id": "注文-7"}).json()["id"] == "cmpl-注文-7"


@pytest.mark.parametrize("request_id", ["x" * 60_000, "\xff", "a\tb"])
def test_a_header_that_is_no_id_is_replaced(client: TestClient, request_id: str) -> None:
    headers = {"X-Request-Id": request_id.encode("latin-1")}
    response = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers)
    assert len(response.json()["id"]) == len("cmpl-") + 32 == len("cmpl-" + response.headers["x-request-id"])


@pytest.mark.parametrize("lora_name", ["a\nb", "x" * 129])
def test_an_adapter_needs_a_name_that_models_and_metrics_can_show(client: TestClient, lora_name: str) -> None:
    body = {"lora_name": lora_name, "lora_path": "shop-lora-recommend"}
    assert error(post(client, "/v1/load_lora_adapter", body), 400)["param"] == "lora_name"


@pytest.mark.parametrize(
    "path",
    ["../../etc", "/etc/passwd", "/", "..", "a\0b", "/dev/zero", "/proc/self/mem", "http://x/y", "A" * 5000],
)
def test_a_path_that_is_no_adapter_is_a_400(path: str) -> None:
    with AsyncLLM(EngineArgs(model="shop", num_gpu_blocks_override=64, enable_lora=True)) as llm:
        client, _ = application(llm)
        body = {"lora_name": "p", "lora_path": path}
        assert error(client.post("/v1/load_lora_adapter", json=body), 400)["param"] == "lora_path"
        error(client.post("/v1/completions", json={"prompt": "a", "model": path}), 404)
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["shop"]


@pytest.mark.parametrize(
    "name", "messages tools self template chat_template tokenize opening documents is_truncated".split()
)
def test_the_variables_of_a_template_cannot_replace_the_template(client: TestClient, name: str) -> None:
    body = {"messages": HELLO, "max_tokens": 2, "chat_template_kwargs": {name: "{{ 1 / 0 }}"}}
    assert error(client.post("/v1/chat/completions", json=body), 400)["param"] == "chat_template_kwargs"


def test_the_fields_of_a_request_decide_over_its_variables(client: TestClient) -> None:
    body = {"messages": HELLO, "max_tokens": 4, "temperature": 0}
    kwargs = {"add_generation_prompt": False, "continue_final_message": True, "enable_thinking": False}
    kwargs["add_special_tokens"] = True
    plain, other = (
        client.post("/v1/chat/completions", json={**body, **more}).json()["choices"]
        for more in ({}, {"chat_template_kwargs": kwargs})
    )
    assert plain == other


@pytest.mark.parametrize(
    "structure", [{"json": {"$ref": "#"}}, {"grammar": "root ::= root"}, {"json": {"allOf": [{"$ref": "#"}]}}]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_structure_that_no_text_has_is_a_400(
    client: TestClient, structure: dict[str, Any], stream: bool
) -> None:
    """xgrammar refuses some of them (0.2.9 more than 0.2.8); the others forbid every token."""
    body = {"prompt": "a", "max_tokens": 2, "structured_outputs": structure, "stream": stream}
    message = error(client.post("/v1/completions", json=body), 400)["message"]
    assert message.startswith(OF_THE_REQUEST)


def test_statistics_that_fail_do_not_end_the_engine(
    client: TestClient, llm: AsyncLLM, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def add(self, submitted: Any) -> None:
            raise RuntimeError("no room")

        def step(self, *args: Any) -> None:
            raise AssertionError("it was removed")

    llm.llm_engine.stat_loggers.append(Failing())
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}).status_code == 200
    assert caplog.text.count("Failing failed and gets no more events") == 1 and "no room" in caplog.text
    assert len(llm.llm_engine.stat_loggers) == 2
