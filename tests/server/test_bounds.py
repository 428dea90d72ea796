"""Work for a request that is large or wrong is bounded: errors, messages, and what other clients wait for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.testclient import TestClient

from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.frontend import parallel_sampling
from engine.frontend.turns import AT_ONCE
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.server import chat as chats
from engine.server import completions, protocol, service
from engine.server.bodies import parse
from engine.server.chat import Chat
from engine.server.completions import Completion
from engine.server.errors import LONGEST_MESSAGE, LONGEST_PARAM, ApiError
from engine.server.protocol import ChatCompletionRequest, CompletionRequest, LoadLoRARequest
from engine.server.service import LARGE_BODY, merged
from tests.server.conftest import Start, application
from tests.server.test_api import HELLO, error
from tests.waiting import one_turn

MANY = 3000
MODELS = [
    model
    for model in vars(protocol).values()
    if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == protocol.__name__
]


def wrong_values(number: int) -> list[Any]:
    """Return containers whose elements are wrong for some type."""
    return [
        [None] * number, [[None] * 10] * number, ["a"] * number, [{}] * number, [[{}]] * number, [[]] * number,
        {str(index): None for index in range(number)}, {str(index): "a" for index in range(number)},
        {str(index): [] for index in range(number)}, [{str(index): None} for index in range(number)],
    ]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_number_of_errors_does_not_grow_with_the_body(model: type[BaseModel]) -> None:
    def count(name: str, value: Any) -> int:
        try:
            TypeAdapter(model).validate_python({name: value})
        except ValidationError as refused:
            return refused.error_count()
        return 0

    for name, field in model.model_fields.items():
        key = field.alias or name
        for few, many in zip(wrong_values(3), wrong_values(MANY), strict=True):
            assert count(key, many) <= max(count(key, few), 5), (name, few)


def bodies(number: int) -> list[tuple[str, bytes]]:
    """Return large invalid bodies with their paths."""
    chat, text = "/v1/chat/completions", "/v1/completions"
    keys = ",".join(f'"\\ud800{index}":1' for index in range(number))
    name = "x" * number
    functions = [{"function": {"name": f"f{index}"}} for index in range(number)]
    values: list[tuple[str, Any]] = [
        *((text, {"prompt": value}) for value in wrong_values(number)),
        *((text, {"prompt": "a", "logit_bias": value}) for value in wrong_values(number)),
        *((text, {"prompt": "a", "stop": value}) for value in wrong_values(number)),
        (text, {"prompt": "a", "bad_words": [f"word{index}" for index in range(number)]}),
        (text, {"prompt": "a", "bad_words": ["x" * 10 * number]}),
        (text, {"prompt": "a", "allowed_token_ids": [-1] * number}),
        (text, {"prompt": "a", "stop_token_ids": [10**9] * number}),
        (text, {"prompt": "a", "structured_outputs": {name: 1}}),
        (text, {"prompt": "a", "structured_outputs": dict.fromkeys(map(str, range(number)), 1)}),
        (text, {"prompt": "a", "structured_outputs": {"json": [[]] * number}}),
        (text, {"prompt": "a", "model": name}),
        (text, {"prompt": "a", "n": 10**400}),
        (text, {"prompt": [[1]] * number}),
        (text, {"prompt": ["a"] * number}),
        (text, {"prompt": [1] * number}),
        (text, {"prompt": ["a"] * 1000, "n": 16384, "temperature": 1}),
        (text, {name: 1}),
        (chat, {"messages": [{"role": "user"}] * number}),
        (chat, {"messages": [{}] * number}),
        (chat, {"messages": [{"role": name, "content": {}}]}),
        (chat, {"messages": [{"role": "user", "content": [{"type": name}]}]}),
        (chat, {"messages": HELLO, "tools": [{}] * number}),
        (chat, {"messages": HELLO, "tools": [{"type": "function", "function": {"name": name}}] * 9}),
        (chat, {"messages": HELLO, "tools": functions, "tool_choice": {"function": {"name": name}}}),
        (chat, {"messages": HELLO, "tool_choice": {name: name}, "tools": [{"function": {"name": "f"}}]}),
        (chat, {"messages": HELLO, "chat_template_kwargs": {"messages": name}}),
        ("/tokenize", {"prompt": [None] * number}),
        ("/tokenize", {"messages": wrong_values(number)[1]}),
        ("/detokenize", {"tokens": [None] * number}),
        ("/detokenize", {"tokens": [10**9] * number}),
        ("/v1/load_lora_adapter", {"lora_name": name, "lora_path": name}),
        ("/v1/unload_lora_adapter", {"lora_name": name}),
    ]  # fmt: skip
    raw = (
        b"[" * number,
        b'{"prompt":"' + b"a" * number,
        b"1" * number,
        b"{" + keys.encode() + b"}",
        b"\xff" * number,
    )
    return [(path, json.dumps(body).encode()) for path, body in values] + [(text, body) for body in raw]


def test_a_large_wrong_body_gets_a_short_error(client: TestClient) -> None:
    for path, body in bodies(MANY):
        response = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code in (400, 404), (path, body[:80], response.text[:200])
        found = response.json()["error"]
        assert len(found["message"]) <= LONGEST_MESSAGE + 1, found["message"][:80]
        assert len(found["param"] or "") <= LONGEST_PARAM + 1, found["param"][:80]


@pytest.mark.slow
def test_health_answers_while_large_wrong_bodies_come(start: Start) -> None:
    """`complaints()` once compared every wrong element with all others: minutes without any answer."""
    served = start("--num-gpu-blocks-override", "512")
    done = threading.Event()
    failures: list[str] = []

    def flood() -> None:
        with httpx.Client(base_url=served.url, timeout=120) as client:
            for path, body in bodies(300_000):
                answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
                if answer.status_code not in (400, 404, 413):
                    failures.append(f"{path} {body[:80]!r}: {answer.status_code}")
        done.set()

    thread = threading.Thread(target=flood)
    thread.start()
    with httpx.Client(base_url=served.url, timeout=10) as probe:
        while not done.is_set():
            assert probe.get("/health").status_code == 200
    thread.join()
    assert not failures


def test_half_a_surrogate_pair_is_no_json(client: TestClient) -> None:
    for body in (b'{"prompt": "\\ud800"}', b'{"prompt": "a", "request_id": "\\udfff"}', b'{"\\ud800": 1}'):
        response = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert "not JSON" in error(response, 400)["message"]
    assert parse(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": "a", "x": ' + b"[" * 300 + b"]" * 300 + b"}", "nested too deeply"),
        (b'{"prompt": "\xff"}', "invalid unicode"),
        (b'{"prompt": "\xed\xa0\x80"}', "invalid unicode"),
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", "out of range"),
        (b'{"prompt": "a", "max_tokens": 1e999}', "max_tokens: must be a finite number"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature: must be at most 2"),
        (b'{"prompt": "a", "logit_bias": {"5": NaN}}', "logit_bias[5]"),
        (b'{"prompt": "a", "logit_bias": {"' + b"9" * 5000 + b'": 1}}', "logit_bias"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_json_that_is_hostile_gets_an_error_that_says_why(
    client: TestClient, body: bytes, problem: str
) -> None:
    response = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert problem in error(response, 400)["message"]


def test_the_last_of_equal_names_counts_and_a_byte_order_mark_is_skipped(client: TestClient) -> None:
    body = b'\xef\xbb\xbf{"prompt": 5, "prompt": "a", "max_tokens": 9, "max_tokens": 1}'
    answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 1


def test_a_large_body_is_prepared_beside_the_event_loop(llm: AsyncLLM) -> None:
    _, service = application(llm)

    async def run(num_bytes: int) -> bool:
        return await service.prepare(num_bytes, threading.current_thread) is threading.current_thread()

    assert asyncio.run(run(LARGE_BODY)) and not asyncio.run(run(LARGE_BODY + 1))


def test_other_clients_have_their_turn_while_many_prompts_are_submitted() -> None:
    turns, begun = 0, 0
    turns_at_end = 0

    async def outputs(number: int) -> AsyncGenerator[Any, None]:
        nonlocal begun, turns_at_end
        begun += 1
        turns_at_end = turns
        yield number

    async def other() -> None:
        nonlocal turns
        while True:
            await one_turn()
            turns += 1

    async def run() -> set[tuple[int, Any]]:
        task = asyncio.create_task(other())
        found = {each async for each in merged([outputs(number) for number in range(16 * AT_ONCE)])}
        task.cancel()
        return found

    assert asyncio.run(run()) == {(number, number) for number in range(16 * AT_ONCE)}
    assert begun == 16 * AT_ONCE and turns_at_end >= 15


WIDE = 4 * AT_ONCE


@pytest.fixture(scope="module")
def wide() -> Iterator[AsyncLLM]:
    """An engine whose steps hold many more rows than one turn handles."""
    args = EngineArgs(model="shop", max_num_seqs=WIDE, num_gpu_blocks_override=512)
    with AsyncLLM(args) as llm:
        yield llm


def busiest_turns(
    work: Coroutine[Any, Any, Any], watched: Mapping[str, Any], patch: pytest.MonkeyPatch
) -> dict[str, int]:
    """Run `work` beside another task; return the most calls of each watched function between two turns of the task.

    Calls in other threads do not count.
    watched: label -> (owner, name of the function).
    """
    turn, loop_thread = 0, threading.current_thread()
    calls: dict[str, Counter[int]] = {label: Counter() for label in watched}

    def watch(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is loop_thread:  # the engine's thread may do more at once
                calls[label][turn] += 1
            return function(*args, **options)

        return counted

    async def other() -> None:
        nonlocal turn
        while True:
            await one_turn()
            turn += 1

    async def run() -> None:
        task = asyncio.create_task(other())
        await work
        task.cancel()

    for label, (owner, name) in watched.items():
        patch.setattr(owner, name, watch(label, getattr(owner, name)))
    asyncio.run(run())
    return {label: max(found.values(), default=0) for label, found in calls.items()}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_other_clients_have_their_turn_among_the_completions_of_one_request(
    wide: AsyncLLM, path: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n=16384 once kept the event loop for 0.3 to 0.8 s before the first token, and again with the answer."""
    app = application(wide)[0].app
    body: dict[str, Any] = {"n": WIDE, "temperature": 1, "max_tokens": 2, "ignore_eos": True}
    body |= {"messages": HELLO} if "chat" in path else {"prompt": "a"}

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            answer = await client.post(path, json={**body, "stream": is_stream})
        assert answer.status_code == 200
        if not is_stream:
            assert [choice["index"] for choice in answer.json()["choices"]] == list(range(WIDE))

    watched = {"requests": (parallel_sampling, "Request"), "JSON": (service, "_json")}
    kind = Chat if "chat" in path else Completion
    watched["choices"] = (kind, "_delta" if kind is Chat and is_stream else "_choice")
    for label, most in busiest_turns(ask(), watched, monkeypatch).items():
        # Of JSON also the fields beside the choices.
        assert most <= AT_ONCE + 20 * (label == "JSON"), (label, most)


def test_other_clients_have_their_turn_among_outputs_that_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def outputs(number: int) -> AsyncGenerator[Any, None]:
        yield number

    found = []

    class Seen:
        add = found.append

    async def read() -> None:
        async for each in merged([outputs(number) for number in range(WIDE)]):
            Seen.add(each)

    assert busiest_turns(read(), {"outputs": (Seen, "add")}, monkeypatch)["outputs"] <= AT_ONCE
    assert len(found) == WIDE


def test_merging_needs_one_wait_for_each_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.wait` on all requests for each output would take a time that grows with the square."""

    async def outputs(number: int) -> AsyncGenerator[Any, None]:
        for index in range(3):
            await one_turn()
            yield index

    async def run() -> int:
        monkeypatch.setattr(asyncio, "wait", partial(pytest.fail, "waits for all"))
        return len([each async for each in merged([outputs(number) for number in range(100)])])

    assert asyncio.run(run()) == 300


def test_a_failure_of_one_prompt_ends_the_others() -> None:
    ended = []

    async def outputs(number: int) -> AsyncGenerator[Any, None]:
        try:
            if number == 3:
                raise ValueError("prompt 3")
            await asyncio.Event().wait()
            yield number
        finally:
            ended.append(number)

    async def run() -> None:
        async for _ in merged([outputs(number) for number in range(5)]):
            pass

    with pytest.raises(ValueError, match="prompt 3"):
        asyncio.run(run())
    assert sorted(ended) == list(range(5))


@pytest.fixture
def with_adapters() -> Iterator[AsyncLLM]:
    args = EngineArgs(
        model="shop", max_num_seqs=WIDE, num_gpu_blocks_override=512, enable_lora=True, max_lora_rank=16
    )
    with AsyncLLM(args) as llm:
        yield llm


@pytest.mark.parametrize("is_chat", [False, True])
def test_an_adapter_unloaded_after_a_body_is_prepared_is_not_loaded_again(
    with_adapters: AsyncLLM, is_chat: bool
) -> None:
    """A large body is prepared in a thread, and the event loop unloads the adapter meanwhile."""
    app_service = application(with_adapters)[1]

    async def run() -> None:
        await app_service.models.load(LoadLoRARequest(lora_name="x", lora_path="shop-lora-recommend"))
        if is_chat:
            prepared: Any = chats.prepare(app_service, ChatCompletionRequest(model="x", messages=HELLO), {})
        else:
            prepared = completions.prepare(app_service, CompletionRequest(model="x", prompt="a"), {})
        await app_service.models.unload("x")
        with pytest.raises(ApiError, match="`x` does not exist"):
            await prepared.full()
        assert await with_adapters.list_lora_adapters() == []

    asyncio.run(run())


def test_an_adapter_unloaded_while_prompts_are_submitted_serves_them_all_and_stays_away(
    with_adapters: AsyncLLM,
) -> None:
    async def run(llm: AsyncLLM) -> None:
        app = application(llm)[0].app
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            adapter = {"lora_name": "x", "lora_path": "shop-lora-recommend"}
            assert (await client.post("/v1/load_lora_adapter", json=adapter)).status_code == 200
            body = {"model": "x", "prompt": [[300]] * 1024, "max_tokens": 1}
            asking = asyncio.create_task(client.post("/v1/completions", json=body))
            while not llm._streams:
                await one_turn()
            assert (await client.post("/v1/unload_lora_adapter", json=adapter)).status_code == 200
            answer = await asking
            assert answer.status_code == 200 and len(answer.json()["choices"]) == 1024
            assert await llm.list_lora_adapters() == []
            assert (await client.post("/v1/load_lora_adapter", json=adapter)).status_code == 200

    asyncio.run(run(with_adapters))


def test_of_two_clients_that_wait_to_unload_an_adapter_one_is_told_that_there_is_none(
    with_adapters: AsyncLLM,
) -> None:
    models = application(with_adapters)[1].models

    async def run() -> None:
        await models.load(LoadLoRARequest(lora_name="x", lora_path="shop-lora-recommend"))
        async with models.submitting:
            clients = [asyncio.create_task(models.unload("x")) for _ in range(2)]
            await one_turn()
        done = await asyncio.gather(*clients, return_exceptions=True)
        assert isinstance(done[1], ApiError) and done[1].status == 404 and "removed" in str(done[0])

    asyncio.run(run())


def test_an_adapter_unloaded_while_completions_are_queued_serves_them_all(with_adapters: AsyncLLM) -> None:
    """The first ones end before the last ones are queued: the adapter must not go between them."""

    async def run(llm: AsyncLLM) -> None:
        lora = await llm.load_lora_adapter("x", "shop-lora-recommend")
        one = SamplingParams(n=8 * WIDE, max_tokens=1, output_kind=RequestOutputKind.FINAL_ONLY)
        asking = asyncio.create_task(anext(llm.generate([300], one, lora_request=lora)))
        await one_turn()
        await llm.unload_lora_adapter("x")
        assert {output.finish_reason for output in (await asking).outputs} == {"length"}
        assert await llm.list_lora_adapters() == []

    asyncio.run(run(with_adapters))


def test_prompts_and_completions_of_a_request_are_limited(llm: AsyncLLM) -> None:
    client, service = application(llm)
    object.__setattr__(service, "max_completion_prompts", 3)
    body = {"prompt": ["a"] * 3, "max_tokens": 1}
    assert client.post("/v1/completions", json=body).status_code == 200
    message = error(client.post("/v1/completions", json={**body, "prompt": ["a"] * 4}), 400)["message"]
    assert "4 prompts" in message and "--max-completion-prompts" in message
    many = error(client.post("/v1/completions", json={**body, "n": 16384, "temperature": 1}), 400)
    assert many["param"] == "n" and "49,152 completions" in many["message"]


def test_stop_strings_and_bad_words_have_vllms_limits(client: TestClient) -> None:
    words = [f"word{number}" for number in range(65)]
    body = {"prompt": "a", "max_tokens": 1}
    for field, most in (("stop", 4), ("bad_words", 64)):
        assert client.post("/v1/completions", json={**body, field: words[:most]}).status_code == 200
        found = error(client.post("/v1/completions", json={**body, field: words * 2}), 400)
        assert found["param"] == field


def test_a_full_queue_is_said_before_a_body_is_tokenised(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, service = application(llm, max_queued=0)
    service.admission.in_flight = 8
    monkeypatch.setattr(type(service), "prepare", partial(pytest.fail, "prepared"))
    error(client.post("/v1/completions", json={"prompt": "a"}), 429)
