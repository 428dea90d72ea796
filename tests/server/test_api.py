"""The API in one process: answers, streams, errors, tools, logprobs, adapters by name, metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from engine.async_llm import AsyncLLM
from engine.frontend.tool_choice import parse_tool_calls
from engine.sampling_params import SamplingParams
from tests.server.conftest import application

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_order_status",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "string", "pattern": "^[0-9]{3}$"}},
            "required": ["order_id"],
        },
    },
}


def chat(client: TestClient, **body: Any) -> Any:
    response = client.post("/v1/chat/completions", json={"messages": HELLO, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: TestClient, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the chunks of a stream, which must end with [DONE]."""
    response = client.post(path, json={"temperature": 0, "stream": True, **body})
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def error(response: Any, status: int) -> dict[str, Any]:
    """Return the error of a response, which must have OpenAI's shape."""
    assert response.status_code == status, response.text
    found = response.json()["error"]
    assert found.keys() == {"message", "type", "param", "code"} and found["code"] == status
    return dict(found)


def offline(llm: AsyncLLM, client: TestClient, max_tokens: int) -> tuple[str, int]:
    """Return the text that the engine gives for HELLO, and the length of its prompt."""
    import asyncio

    async def run() -> Any:
        prompt = llm.llm_engine.input_processor.chat_prompt(HELLO)
        async for output in llm.generate(prompt, SamplingParams(temperature=0, max_tokens=max_tokens)):
            found = output
        return found

    output = asyncio.run(run())
    return output.outputs[0].text, len(output.prompt_token_ids)


def test_a_chat_answers_with_the_engines_tokens(llm: AsyncLLM, client: TestClient) -> None:
    text, num_prompt = offline(llm, client, 64)
    answer = chat(client, max_completion_tokens=64)
    [choice] = answer["choices"]
    message = choice["message"]
    assert (message["role"], message["content"], choice["finish_reason"]) == ("assistant", text, "stop")
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    usage = answer["usage"]
    assert usage["prompt_tokens"] == num_prompt
    assert usage["total_tokens"] == num_prompt + usage["completion_tokens"]


def test_a_stream_adds_up_to_the_whole_answer(client: TestClient) -> None:
    whole = chat(client, max_tokens=20)
    chunks = stream(
        client, "/v1/chat/completions", messages=HELLO, max_tokens=20, stream_options={"include_usage": True}
    )
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    deltas = [choice for chunk in chunks for choice in chunk["choices"]]
    assert (
        "".join(delta["delta"].get("content", "") for delta in deltas)
        == whole["choices"][0]["message"]["content"]
    )
    assert [delta["finish_reason"] for delta in deltas if delta["finish_reason"]] == ["stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"} and len(
        {c["id"] for c in chunks}
    ) == 1


def test_completions_take_several_prompts_and_n(client: TestClient) -> None:
    body = {"prompt": ["Hello", "What"], "n": 2, "temperature": 0.7, "seed": 5, "max_tokens": 6}
    answer = client.post("/v1/completions", json=body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] <= 24
    by_index: dict[int, str] = {}
    for chunk in stream(client, "/v1/completions", **body):
        for choice in chunk["choices"]:
            by_index[choice["index"]] = by_index.get(choice["index"], "") + choice["text"]
    assert [by_index[index] for index in range(4)] == [choice["text"] for choice in answer["choices"]]


def test_echo_and_logprobs_cover_the_prompt(client: TestClient) -> None:
    body = {"prompt": "Hello there", "echo": True, "logprobs": 2, "max_tokens": 0, "return_token_ids": True}
    [choice] = client.post("/v1/completions", json=body).json()["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "Hello there" == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None and all(
        value <= 0 for value in logprobs["token_logprobs"][1:]
    )
    assert logprobs["text_offset"][-1] + len(logprobs["tokens"][-1]) == len("Hello there")
    assert len(choice["prompt_token_ids"]) == len(logprobs["tokens"]) and choice["token_ids"] == []


def test_a_stream_has_the_logprobs_of_the_whole_answer(client: TestClient) -> None:
    body = {"prompt": "Hello there", "echo": True, "logprobs": 1, "max_tokens": 8, "temperature": 0}
    [whole] = client.post("/v1/completions", json=body).json()["choices"]
    parts = [
        choice["logprobs"]
        for chunk in stream(client, "/v1/completions", **body)
        for choice in chunk["choices"]
    ]
    for name, value in whole["logprobs"].items():
        assert [each for part in parts for each in part[name]] == value, name


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "reason"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "get_order_status"}}, "stop")],
)
def test_a_forced_tool_is_called(client: TestClient, is_stream: bool, choice: Any, reason: str) -> None:
    body = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 60, "messages": HELLO}
    if is_stream:
        chunks = stream(client, "/v1/chat/completions", **body)
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        [call] = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert call["index"] == 0 and chunks[-1]["choices"][0]["finish_reason"] == reason
    else:
        [choice] = chat(client, **body)["choices"]
        assert choice["finish_reason"] == reason and choice["message"]["content"] == ""
        [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_order_status"
    assert json.loads(call["function"]["arguments"])["order_id"].isdigit()


CALLS = {
    "hermes": 'Yes.<tool_call>{"name": "f", "arguments": {"a": "x y"}}</tool_call><tool_call>{"name": "g"}</tool_call>',
    "llama3_json": 'Yes.{"name": "f", "parameters": {"a": "x y"}}; {"name": "g", "parameters": {}}',
    "mistral": 'Yes.[TOOL_CALLS]f{"a": "x y"}[TOOL_CALLS]g[ARGS]{}',
    "pythonic": "[f(a='x y'), g()]",
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_every_format_are_answered_and_streamed(llm: AsyncLLM, name: str) -> None:
    client, _ = application(llm, tool_call_parser=name)
    body = {"tools": [TOOL], "structured_outputs": {"choice": [CALLS[name]]}, "max_tokens": 90}
    [choice] = chat(client, **body)["choices"]
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert calls == [{"name": "f", "arguments": '{"a": "x y"}'}, {"name": "g", "arguments": "{}"}]
    content = choice["message"]["content"]
    assert content == (None if name == "pythonic" else "Yes.") and choice["finish_reason"] == "tool_calls"
    chunks = stream(client, "/v1/chat/completions", messages=HELLO, **body)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == (content or "")
    streamed = [{"name": "", "arguments": ""}, {"name": "", "arguments": ""}]
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        for key, text in call["function"].items():
            streamed[call["index"]][key] += text
    assert streamed == calls and chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_of_earlier_turns_and_parts_of_text_are_rendered(client: TestClient) -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "get_order_status", "arguments": '{"order_id": "7"}'},
    }
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Where is"}, {"type": "text", "text": "order 7?"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "shipped"},
    ]
    tokens = client.post("/tokenize", json={"messages": messages, "tools": [TOOL]}).json()["tokens"]
    text = client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert "Where is\norder 7?" in text and "shipped" in text
    _, [rendered] = parse_tool_calls(text[text.rindex("<tool_call>") :])
    assert json.loads(rendered["function"]["arguments"]) == {"order_id": "7"}


@pytest.mark.parametrize(
    "structure",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}},
            }
        },
        {"structured_outputs": {"choice": ['"a"', '"b"']}},
    ],
)
def test_structured_outputs_hold(client: TestClient, structure: dict[str, Any]) -> None:
    [choice] = chat(client, max_tokens=20, **structure)["choices"]
    assert choice["message"]["content"] in ('"a"', '"b"')


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": HELLO, "temperature": -1}, None),
        ({"messages": HELLO, "n": 0}, None),
        ({"messages": HELLO, "n": "x"}, "n"),
        ({"messages": "x"}, "messages"),
        ({}, "messages"),
        ({"messages": []}, None),
        ({"messages": [{"content": "no role"}]}, None),
        ({"messages": HELLO, "stop": [1]}, "stop[0]"),
        ({"messages": HELLO, "max_tokens": 0}, None),
        ({"messages": HELLO, "max_tokens": 10**6}, "max_tokens"),
        ({"messages": HELLO, "max_completion_tokens": 10**6}, "max_completion_tokens"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 999}, None),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": HELLO, "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"messages": HELLO, "tools": []}, "tools"),
        ({"messages": HELLO, "tool_choice": "auto"}, "tool_choice"),
        ({"messages": HELLO, "tools": [TOOL], "tool_choice": {"function": {"name": "other"}}}, None),
        ({"messages": HELLO, "response_format": {"type": "json_schema"}}, "response_format"),
        ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": HELLO, "structured_outputs": {"regex": "a", "choice": ["b"]}}, None),
        ({"messages": HELLO, "structured_outputs": {"regex": "("}}, None),
        ({"messages": HELLO, "logit_bias": {"99999999": 1}}, None),
        ({"messages": HELLO, "temperature": 2.5}, "temperature"),
        ({"messages": HELLO, "top_p": 1.5}, "top_p"),
        ({"messages": HELLO, "structured_outputs": {}}, "structured_outputs"),
        ({"messages": HELLO, "chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": HELLO, "reasoning_effort": "endless"}, "reasoning_effort"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"content": "Hello"}]}, "messages[0]"),
        ({"messages": HELLO, "cache_salt": ""}, "cache_salt"),
        ({"messages": HELLO, "truncate_prompt_tokens": 10**9}, "truncate_prompt_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content"),
        ({"messages": HELLO, "continue_final_message": True}, "continue_final_message"),
        ({"messages": [{"role": "user", "content": "a" * 40_000}]}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_wrong_chat_is_a_400_that_names_the_field(
    client: TestClient, body: dict[str, Any], param: str | None, is_stream: bool
) -> None:
    if is_stream and "stream_options" in body:
        return
    response = client.post("/v1/chat/completions", json={"stream": is_stream, **body})
    found = error(response, 400)
    assert found["type"] == "BadRequestError" and len(found["message"]) > 10
    if param is not None:
        assert found["param"] == param


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "a", "suffix": "b"}, 400),
        ({"prompt": "a", "use_beam_search": True}, 501),
        ({"prompt": None}, 400),
        ({"prompt": []}, 400),
        ({"prompt": ""}, 400),
        ({"prompt": [[]]}, 400),
        ({"prompt": [10**12]}, 400),
        ({"prompt": [-1]}, 400),
        ({"prompt": "a", "max_tokens": 0}, 400),
        ({"prompt": "a", "max_tokens": 10**6}, 400),
        ({"prompt": "a", "n": None}, 400),
        ({"prompt": "a", "logprobs": -3}, 400),
        ({"prompt": "a", "seed": 2**63}, 400),
        ({"prompt": "a", "model": "gpt-5"}, 404),
        ({"prompt": "\ud800"}, 400),
    ],
)
def test_a_wrong_completion_has_a_status(client: TestClient, body: dict[str, Any], status: int) -> None:
    headers = {"Content-Type": "application/json"}
    error(client.post("/v1/completions", content=json.dumps(body), headers=headers), status)


def nested(levels: int) -> dict[str, Any]:
    """Return a JSON schema with so many objects inside one another."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "bomb",
    [
        {"structured_outputs": {"json": nested(300)}},
        {"structured_outputs": {"json": json.dumps(nested(200))}},
        {"structured_outputs": {"json": '{"a":' * 50_000 + "1" + "}" * 50_000}},
        {"structured_outputs": {"json": {"anyOf": [nested(1)] * 6000}}},
        {"structured_outputs": {"structural_tag": '{"a":' * 400 + "1" + "}" * 400}},
        {"structured_outputs": {"grammar": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000}},
        {"structured_outputs": {"regex": "(a{1,1000}){1,1000}"}},
        {"structured_outputs": {"choice": [f"choice {number}" for number in range(50_000)]}},
        {"unknown": nested(100)},
        {"prompt": "a b " * 500_000},
        {"max_tokens": 10**400},
    ],
    ids=lambda bomb: str(bomb)[:60],
)
def test_a_bomb_is_a_400_and_the_engine_lives(client: TestClient, bomb: dict[str, Any]) -> None:
    error(client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, **bomb}), 400)
    tools = [{"type": "function", "function": {"name": "f", "parameters": nested(300)}}]
    error(
        client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}], "tools": tools}
        ),
        400,
    )
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_body_of_another_type_is_told_so(client: TestClient) -> None:
    found = error(client.post("/v1/completions", content='{"prompt": "a"}'), 400)
    assert "application/json" in found["message"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b"\xff\xfe", b'{"prompt": NaN}']
)
def test_a_body_that_is_no_request_is_a_400(client: TestClient, content: bytes) -> None:
    error(client.post("/v1/completions", content=content, headers={"content-type": "application/json"}), 400)


def test_unknown_fields_are_ignored_and_unknown_paths_are_errors(client: TestClient) -> None:
    assert chat(client, max_tokens=2, some_future_field={"a": 1})["choices"]
    assert error(client.get("/v1/nothing"), 404)["type"] == "NotFoundError"
    error(client.get("/v1/completions"), 405)
    error(client.post("/v1/embeddings", json={"input": "a"}), 404)


def test_keys_guard_everything_but_health(llm: AsyncLLM) -> None:
    client, _ = application(llm, api_keys=["first", "second"])
    for path in ("/v1/models", "/metrics", "/version", "/docs", "/openapi.json", "/v1/nothing"):
        assert error(client.get(path), 401)["type"] == "AuthenticationError"
        error(client.get(path, headers={"Authorization": "Bearer wrong"}), 401)
        error(client.get(path, headers={"Authorization": "Basic first"}), 401)
    assert client.get("/health").status_code == client.get("/ping").status_code == 200
    for key in ("first", "second"):
        assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_a_long_body_is_refused_before_it_is_read(llm: AsyncLLM) -> None:
    client, _ = application(llm, max_body_bytes=1000)
    error(client.post("/v1/completions", content=b"x" * 1001), 413)
    error(client.post("/v1/completions", content=(b"x" * 600 for _ in range(3))), 413)
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_full_queue_is_a_429_and_a_draining_server_a_503(llm: AsyncLLM) -> None:
    client, service = application(llm, max_queued=2)
    response = client.post("/v1/completions", json={"prompt": "a", "n": 11, "temperature": 1})
    assert error(response, 429)["type"] == "TooManyRequestsError" and response.headers["retry-after"] == "1"
    assert client.post("/v1/completions", json={"prompt": "a", "n": 10, "max_tokens": 1}).status_code == 200
    assert 'reason="max_num_queued_reqs"} 1.0' in client.get("/metrics").text
    service.admission.is_draining = True
    assert (
        error(client.post("/v1/completions", json={"prompt": "a"}), 503)["type"] == "ServiceUnavailableError"
    )
    assert client.get("/health").status_code == 503
    assert service.admission.in_flight == 0


def test_a_request_that_takes_too_long_is_a_408(llm: AsyncLLM) -> None:
    client, service = application(llm)
    object.__setattr__(service, "timeout_s", 0.0001)
    error(client.post("/v1/completions", json={"prompt": "a", "max_tokens": 200, "ignore_eos": True}), 408)


def test_a_completion_ends_where_the_model_does_and_a_priority_needs_its_policy(client: TestClient) -> None:
    longest = client.get("/v1/models").json()["data"][0]["max_model_len"]
    body = {"prompt": [300] * (longest - 5), "max_tokens": 100, "ignore_eos": True, "priority": 3}
    assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 5
    body = {"prompt": "a", "max_tokens": None, "ignore_eos": True}
    assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 16


def test_a_developer_is_the_system_and_the_fingerprint_is_the_servers(client: TestClient) -> None:
    first, second = (
        chat(client, messages=[{"role": role, "content": "Be short."}, *HELLO], max_tokens=4, temperature=0)
        for role in ("developer", "system")
    )
    assert first["choices"] == second["choices"] and first["system_fingerprint"] == "prep-0"
    chunks = stream(client, "/v1/completions", prompt="a", max_tokens=3)
    assert ["system_fingerprint" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_ids_go_from_the_request_to_the_answer(client: TestClient) -> None:
    headers = {"X-Request-Id": "mine-7"}
    response = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers)
    assert response.headers["x-request-id"] == "mine-7" and response.json()["id"] == "cmpl-mine-7"
    assert len(client.get("/health").headers["x-request-id"]) == 32


def test_a_salt_hides_a_cached_prefix(client: TestClient) -> None:
    body = {"prompt": "The quick brown fox jumps over the lazy dog. " * 8, "max_tokens": 1}

    def cached(**more: Any) -> int:
        usage = client.post("/v1/completions", json={**body, **more}).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(cache_salt="tenant 1") == 0
    assert cached(cache_salt="tenant 2") == 0
    assert cached(cache_salt="tenant 1") > 0


def test_metrics_equal_the_usage_of_the_answers(llm: AsyncLLM) -> None:
    client, _ = application(llm)
    bodies = [
        {"prompt": "Hello", "max_tokens": 5, "ignore_eos": True},
        {"prompt": "Hi", "max_tokens": 9, "stop": ["o"]},
    ]
    usages = [client.post("/v1/completions", json=body).json()["usage"] for body in bodies]
    found = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[:1] != "#")
    labels = '{engine="0",model_name="shop"}'
    assert float(found[f"vllm:prompt_tokens_total{labels}"]) == sum(
        usage["prompt_tokens"] for usage in usages
    )
    generated = float(found[f"vllm:generation_tokens_total{labels}"])
    assert generated >= sum(usage["completion_tokens"] for usage in usages)
    assert float(found[f"vllm:e2e_request_latency_seconds_count{labels}"]) == 2
    assert float(found[f"vllm:time_to_first_token_seconds_count{labels}"]) == 2
    assert float(found[f"vllm:inter_token_latency_seconds_count{labels}"]) == generated - 2
    ends = sum(float(value) for name, value in found.items() if name.startswith("vllm:request_success_total"))
    assert ends == 2


def test_models_and_version(client: TestClient) -> None:
    [card] = client.get("/v1/models").json()["data"]
    assert card["id"] == "shop" and card["max_model_len"] > 0
    assert client.get("/version").json() == {"version": "1.2.3"}
    assert client.post("/reset_prefix_cache").json() == {"success": True}


def test_an_engine_without_adapters_refuses_to_load_one(client: TestClient) -> None:
    body = {"lora_name": "x", "lora_path": "shop-lora-recommend"}
    assert "enable_lora" in error(client.post("/v1/load_lora_adapter", json=body), 400)["message"]
    error(client.post("/v1/unload_lora_adapter", json={"lora_name": "x"}), 404)
