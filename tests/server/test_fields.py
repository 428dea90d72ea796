"""Fields of vLLM's requests: each has its effect, or none in vLLM either, or is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from engine.async_llm import AsyncLLM
from engine.server import chat as chats
from engine.server import completions
from engine.server.fields import README, REFUSED, VLLM, WITHOUT_EFFECT, with_table
from engine.server.protocol import ChatCompletionRequest, CompletionRequest
from tests.server.conftest import application
from tests.server.test_api import HELLO, TOOL, chat, error, stream

ASKING: dict[str, Any] = {
    "kv_transfer_params": {"a": 1}, "ec_transfer_params": {"a": 1}, "vllm_xargs": {"a": 1},
    "repetition_detection": {"a": 1}, "mm_processor_kwargs": {"a": 1}, "media_io_kwargs": {"image": {"a": 1}},
    "logprob_token_ids": [1], "stream_interval": 2, "routed_experts_prompt_start": 1, "thinking_token_budget": 0,
    "suffix": "a", "prompt_embeds": "a", "chat_template": "a", "use_beam_search": True, "watermarking": True,
    "is_3d_lora_weight": True,
}  # fmt: skip
"""Values that ask for something."""


def test_the_classes_have_all_fields_of_vllm() -> None:
    for place, (model, names) in VLLM.items():
        known = {field.alias or name for name, field in model.model_fields.items()}
        assert names - known == set(), place


def test_a_field_that_asks_for_what_is_not_here_is_refused(client: TestClient) -> None:
    assert ASKING.keys() == REFUSED.keys()
    bodies = {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": HELLO}}
    bodies["/v1/load_lora_adapter"] = {"lora_name": "a", "lora_path": "a"}
    for name, value in ASKING.items():
        path = next(path for path in bodies if name in VLLM[path][1])
        found = error(client.post(path, json={**bodies[path], name: value}), REFUSED[name].status)
        assert found["param"] == name and REFUSED[name].remedy in found["message"]
    for name in ("media_io_kwargs", "mm_processor_kwargs", "chat_template"):
        assert client.post("/tokenize", json={"messages": HELLO, name: ASKING[name]}).status_code in (
            400,
            501,
        )


@pytest.mark.parametrize(
    "body",
    [dict.fromkeys(("watermarking", "thinking_token_budget", "vllm_xargs", "suffix")), {"thinking_token_budget": -1},
     {"stream_interval": 1}, {"watermarking": False}, {"vllm_xargs": {}, "suffix": ""}],
)  # fmt: skip
def test_a_field_that_asks_for_nothing_is_accepted(client: TestClient, body: dict[str, Any]) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, **body})
    assert answer.status_code == 200, answer.text


def test_every_accepted_field_is_read(llm: AsyncLLM) -> None:
    """A field that no code reads is accepted and ignored."""
    read: set[str] = set()

    def watched(model: type[BaseModel]) -> Any:
        def look_up(self: Any, name: str) -> Any:
            read.add(name)
            return super(model, self).__getattribute__(name)

        return type(model.__name__, (model,), {"__getattribute__": look_up})

    async def run(module: Any, model: type[BaseModel], bodies: list[dict[str, Any]]) -> set[str]:
        read.clear()
        for body in bodies:
            prepared = module.prepare(application(llm)[1], watched(model)(max_tokens=3, **body), Headers())
            await prepared.full()
            async for _ in prepared.stream():
                pass
        return read

    tools = {"tools": [TOOL], "tool_choice": "required"}
    cut = {"truncate_prompt_tokens": 1, "logprobs": 1}
    chat_bodies: list[dict[str, Any]] = [cut, tools, {"tools": [TOOL]}]
    cases: list[tuple[Any, type[BaseModel], list[dict[str, Any]]]] = [
        (completions, CompletionRequest, [{"prompt": [70, 71], **cut}, {"prompt": "a"}]),
        (chats, ChatCompletionRequest, [{"messages": HELLO, **body} for body in chat_bodies]),
    ]
    for module, model, bodies in cases:
        found = asyncio.run(run(module, model, bodies))
        unread = {name for name in model.model_fields if name not in found}
        assert unread <= WITHOUT_EFFECT.keys(), unread
        assert not found & WITHOUT_EFFECT.keys() - {"spaces_between_special_tokens"}


def test_the_table_of_the_readme_is_that_of_the_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == with_table(text), "run python -m engine.server.fields"


@pytest.mark.parametrize(
    ("side", "kept"), [(None, slice(2, None)), ("left", slice(2, None)), ("right", slice(0, 3))]
)
def test_a_prompt_is_truncated_on_the_side_that_is_named(
    client: TestClient, side: str | None, kept: slice
) -> None:
    prompt = [70, 71, 72, 73, 74]
    body = {"truncate_prompt_tokens": 3, "truncation_side": side, "max_tokens": 1, "return_token_ids": True}
    answer = client.post("/v1/completions", json={"prompt": prompt, **body}).json()
    assert answer["choices"][0]["prompt_token_ids"] == prompt[kept]
    whole = client.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    assert chat(client, **body)["prompt_token_ids"] == (whole[:3] if side == "right" else whole[-3:])
    wrong = client.post("/v1/completions", json={"prompt": prompt, **body, "truncation_side": "middle"})
    assert error(wrong, 400)["param"] == "truncation_side"


def test_a_text_that_is_truncated_may_be_longer_than_the_model_takes(client: TestClient) -> None:
    long = "a b " * 20_000
    messages = [{"role": "user", "content": long}]
    for path, body in (
        ("/v1/completions", {"prompt": long}),
        ("/v1/chat/completions", {"messages": messages}),
    ):
        error(client.post(path, json={**body, "max_tokens": 1}), 400)
        answer = client.post(path, json={**body, "max_tokens": 1, "truncate_prompt_tokens": -1})
        assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == 2047


def test_the_variables_of_a_chat_reach_its_template(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    _, service = application(llm)
    shown = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ documents }}|{{ mood }}|{{ bos_token }}"
    monkeypatch.setitem(service.tokenizer.chat_templates, "default", shown)

    def rendered(**body: Any) -> str:
        return str(chats.render(service, ChatCompletionRequest(messages=HELLO, **body))["prompt"])

    assert rendered().startswith("||None||")
    assert rendered(reasoning_effort="low").startswith("low|True|")
    assert rendered(reasoning_effort="none").startswith("none|False|")
    kwargs = {"enable_thinking": False, "mood": "calm"}
    assert rendered(reasoning_effort="high", chat_template_kwargs=kwargs).startswith("high|False|None|calm")
    assert "{'title': 'a'}" in rendered(documents=[{"title": "a"}])


@pytest.mark.parametrize(
    ("tool", "shown"),
    [
        ({"function": {"name": "f"}},
         {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}),
        ({"type": "function", "x": 1, "function": {"strict": False, "parameters": {}, "x": 1, "name": "f"}},
         {"type": "function", "function": {"name": "f", "description": None, "parameters": {}, "strict": False}}),
        ({"defer_loading": True, "function": {"name": "f", "description": "d"}},
         {"type": "function",
          "function": {"name": "f", "description": "d", "parameters": None, "defer_loading": True},
          "defer_loading": True}),
        ({"defer_loading": True, "function": {"name": "f", "defer_loading": None, "strict": "yes"}},
         {"type": "function",
          "function": {"name": "f", "description": None, "parameters": None, "strict": True, "defer_loading": True},
          "defer_loading": True}),
        ({"defer_loading": True, "function": {"name": "f", "defer_loading": False}},
         {"type": "function",
          "function": {"name": "f", "description": None, "parameters": None, "defer_loading": False},
          "defer_loading": True}),
    ],
)  # fmt: skip
def test_templates_see_tools_as_in_vllm(
    llm: AsyncLLM, tool: dict[str, Any], shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool without parameters was once refused: the template of `shop` looks at them."""
    client, service = application(llm)
    assert chat(client, tools=[tool])["usage"]["prompt_tokens"] > 0
    monkeypatch.setitem(service.tokenizer.chat_templates, "default", "{{ tools | tojson }}")
    rendered = chats.render(service, ChatCompletionRequest(messages=HELLO, tools=[tool]))["prompt"]
    assert rendered == json.dumps([shown])


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"type": "tool", "function": {"name": "f"}}, "tools[0].type"),
        ({"function": {"name": "f"}, "defer_loading": "abc"}, "tools[0].defer_loading"),
        ({"function": {"name": "f", "defer_loading": "abc"}}, "tools[0].function.defer_loading"),
        ({"function": {"name": "f", "description": 5}}, "tools[0].function.description"),
        ({"function": {"name": "f", "strict": "abc"}}, "tools[0].function.strict"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_fields_of_tools_have_vllms_types(
    client: TestClient, path: str, tool: dict[str, Any], place: str
) -> None:
    answer = client.post(path, json={"messages": HELLO, "tools": [tool], "max_tokens": 1})
    assert error(answer, 400)["message"].startswith(f"{place}: must be ")


def test_a_chat_may_have_its_special_tokens_twice(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    _, service = application(llm)
    given: list[bool] = []
    encode = service.tokenizer.encode

    def noting(text: str, *, add_special_tokens: bool = True) -> list[int]:
        given.append(add_special_tokens)
        return encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(service.tokenizer, "encode", noting)
    for value in (False, True):
        chats.render(service, ChatCompletionRequest(messages=HELLO, add_special_tokens=value))
    assert given == [False, True]


@pytest.mark.parametrize("n", [1, 2])
def test_each_chunk_has_the_usage_of_its_choice(client: TestClient, n: int) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body: dict[str, Any] = {
        "n": n,
        "temperature": n - 1,
        "stream_options": options,
        "max_tokens": 5,
        "ignore_eos": True,
    }
    num_prompt = len(client.post("/tokenize", json={"messages": HELLO}).json()["tokens"])
    for path, more in (
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/completions", {"prompt": [70] * num_prompt}),
        ("/v1/completions", {"prompt": [[70] * num_prompt] * 3}),
    ):
        *chunks, end = stream(client, path, **{**body, **more})
        assert all(chunk["usage"]["prompt_tokens"] == num_prompt for chunk in chunks)
        last = {chunk["choices"][0]["index"]: chunk["usage"] for chunk in chunks}
        assert all(
            usage == {"prompt_tokens": num_prompt, "total_tokens": num_prompt + 5, "completion_tokens": 5}
            for usage in last.values()
        )
        prompts = 3 if isinstance(more.get("prompt", [0])[0], list) else 1
        assert len(last) == n * prompts
        assert (end["usage"]["prompt_tokens"], end["usage"]["completion_tokens"]) == (
            num_prompt * prompts,
            5 * n * prompts,
        )


def test_the_text_of_the_prompt_is_returned_if_it_is_wanted(llm: AsyncLLM) -> None:
    client, service = application(llm)
    text = chats.render(service, ChatCompletionRequest(messages=HELLO))["prompt"]
    assert chat(client, max_tokens=1)["prompt_text"] is None
    assert chat(client, max_tokens=1, return_prompt_text=True)["prompt_text"] == text
    first, *_ = stream(client, "/v1/chat/completions", messages=HELLO, max_tokens=1, return_prompt_text=True)
    assert first["prompt_text"] == text


CALLS = '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(("parallel", "names"), [(None, ["f", "g"]), (True, ["f", "g"]), (False, ["f"])])
def test_calls_are_parallel_unless_the_request_forbids_it(
    client: TestClient, parallel: bool | None, names: list[str]
) -> None:
    body = {
        "tools": [TOOL],
        "structured_outputs": {"choice": [CALLS]},
        "max_tokens": 90,
        "parallel_tool_calls": parallel,
    }
    [choice] = chat(client, **body)["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == names
    chunks = stream(client, "/v1/chat/completions", messages=HELLO, **body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["name"] for call in calls if call.get("name")] == names
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_order_status"}}]
)
def test_a_forced_call_that_is_cut_off_is_no_content(client: TestClient, choice: Any) -> None:
    body = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 4}
    [whole] = chat(client, **body)["choices"]
    assert not whole["message"]["content"] and not whole["message"].get("tool_calls")
    chunks = stream(client, "/v1/chat/completions", messages=HELLO, **body)
    assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "body",
    [{"prompt": [70] * 2048}, {"prompt": [70] * 5000}, {"prompt": "a" * 100_000},
     {"messages": HELLO, "max_tokens": 2045}, {"messages": [{"role": "user", "content": "a b " * 3000}]}],
)  # fmt: skip
def test_clients_recognise_that_the_context_is_too_short(client: TestClient, body: dict[str, Any]) -> None:
    """LiteLLM raises ContextWindowExceededError for these words, and tries a model with a longer context."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    message = error(client.post(path, json=body), 400)["message"]
    assert message.startswith("this model's maximum context length is 2,048 tokens")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/embeddings"])
def test_a_path_that_is_absent_says_what_to_use(client: TestClient, path: str) -> None:
    message = error(client.post(path, json={"input": "a"}), 404)["message"]
    assert path in message and ("/v1/chat/completions" in message or "LLM.embed" in message)
    assert path in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("salt", ["", "x" * 129, "a/b", "a@b", "a\\b", "a\0b"])
def test_a_salt_that_vllm_refuses_is_refused(client: TestClient, salt: str) -> None:
    body = {"prompt": "a", "max_tokens": 1, "cache_salt": salt}
    assert error(client.post("/v1/completions", json=body), 400)["param"] == "cache_salt"
