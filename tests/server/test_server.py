"""A real server process: the official client, clients that hang up, load, signals, a killed engine."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.server.child_server import ChildServer
from tests.server.conftest import Start
from tests.server.raw_client import RawClient
from tests.waiting import until

pytestmark = pytest.mark.slow
BLOCKS = "512"
OPTIONS = ("--num-gpu-blocks-override", BLOCKS, "--max-num-seqs", "32", "--enable-lora")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "requests.jsonl"


@pytest.fixture(scope="module")
def served(start: Start, log: Path) -> ChildServer:
    modules = ("--lora-modules", "recommend=shop-lora-recommend")
    return start(*OPTIONS, "--api-key", "secret", "--request-log", str(log), *modules)


@pytest.fixture(scope="module")
def client(served: ChildServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0)


def metrics(served: ChildServer) -> dict[str, float]:
    text = httpx.get(f"{served.url}/metrics", headers={"Authorization": "Bearer secret"}).text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def level(served: ChildServer, name: str) -> float:
    return metrics(served)[f'vllm:{name}{{engine="0",model_name="shop"}}']


def test_headers_without_end_are_refused(served: ChildServer) -> None:
    address = httpx.URL(served.url)
    with socket.create_connection((address.host, address.port), timeout=20) as flood:
        with suppress(ConnectionError):
            flood.sendall(b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 20_000)
        assert flood.recv(100).startswith(b"HTTP/1.1 400 ")


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Type: application/json\r\n"
RAW = {
    "headers in one piece": (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
    "long path": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "bytes": (bytes(range(256)) * 10, 400),
    "two lengths": (HEAD + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\n{}", 400),
    "negative length": (HEAD + b"Content-Length: -5\r\n\r\n", 400),
    "huge length": (HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", 413),
    "chunk without a size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", 400),
    "chunk of any size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\nhello\r\n", 400),
    "another coding": (HEAD + b"Transfer-Encoding: gzip\r\n\r\n{}", 400),
    "empty object": (HEAD + b"Content-Length: 2\r\n\r\n{}", 400),
}
"""Bytes of a client, and the status of the answer."""


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_request_get_a_status_and_the_server_goes_on(
    served: ChildServer, name: str
) -> None:
    address, (sent, status) = httpx.URL(served.url), RAW[name]
    with socket.create_connection((address.host, address.port), timeout=20) as client:
        client.sendall(sent)
        assert client.recv(1 << 16).startswith(f"HTTP/1.1 {status} ".encode())
    assert httpx.get(f"{served.url}/health").status_code == 200


def test_the_official_client_uses_every_endpoint(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["shop", "recommend"]
    messages: Any = [{"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(model="shop", messages=messages, temperature=0, max_tokens=30)
    text = whole.choices[0].message.content
    stream = client.chat.completions.create(
        model="shop", messages=messages, temperature=0, max_tokens=30, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage == whole.usage
    many = client.completions.create(model="shop", prompt="Hello", n=3, temperature=1, seed=1, max_tokens=4)
    assert len(many.choices) == 3
    schema = {"name": "answer", "schema": {"enum": ["yes", "no"]}}
    forced = client.chat.completions.create(
        model="shop",
        messages=messages,
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=9,
    )
    assert forced.choices[0].message.content in ('"yes"', '"no"')
    adapted = client.chat.completions.create(model="recommend", messages=messages, max_tokens=4)
    assert adapted.model == "recommend"
    extra = client.chat.completions.create(
        model="shop", messages=messages, max_tokens=3, extra_body={"top_k": 1}
    )
    assert extra.choices[0].finish_reason == "length"


def test_the_official_clients_errors_have_their_classes(client: openai.OpenAI, served: ChildServer) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-5", messages=messages)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="shop", messages=messages, temperature=-1)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0).models.list()


async def one(client: RawClient, number: int, hangs_up: bool) -> list[int] | int | None:
    """Stream a completion; return its token ids, None after hanging up, or the status of a malformed body."""
    if number % 20 == 0:
        status, _ = await client.post("/v1/completions", {"prompt": {}})
        return status
    body = {
        "prompt": f"Order number {number % 40}, please", "max_tokens": 12, "temperature": 0, "stream": True,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    status, content = await client.post("/v1/completions", body, hang_up_after=0 if hangs_up else None)
    assert status == 200, content
    if content is None:
        return None
    events = [event.removeprefix(b"data: ") for event in content.split(b"\n\n") if event]
    assert events.pop() == b"[DONE]"
    return [token for event in events for token in json.loads(event)["choices"][0]["token_ids"]]


def counts(served: ChildServer, log: Path) -> list[Counter[str]]:
    """Return the sums of /metrics and those of the request log, which must be equal while no request runs."""
    found = metrics(served)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    begun = [entry for entry in entries if "TTFTMs" in entry]  # the others have computed nothing
    reasons = Counter(f"request_success_total/{entry['finish_reason']}" for entry in entries)
    logged = reasons + Counter(
        {
            "e2e_request_latency_seconds_count": len(entries),
            "time_to_first_token_seconds_count": len(begun),
            "generation_tokens_total": sum(entry["output"] for entry in entries),
            "prompt_tokens_total": sum(entry["prompt"] for entry in begun),
            "prompt_tokens_cached_total": sum(entry["prefix_len"] for entry in begun),
            "request_num_preemptions_sum": sum(entry["num_preemptions"] for entry in entries),
        }
    )
    scraped = Counter[str]()
    for name in logged:
        of, _, reason = name.partition("/")
        series = [
            value
            for key, value in found.items()
            if key.startswith(f"vllm:{of}{{") and (not reason or f'finished_reason="{reason}"' in key)
        ]
        scraped[name] = int(sum(series))
    return [scraped, logged]


def test_streams_under_load_have_the_offline_tokens_and_leave_nothing_behind(
    served: ChildServer, log: Path
) -> None:
    """A fifth of the clients hangs up, one in twenty bodies is malformed. PREP_STORM=10000: 1,000 at a time."""
    earlier = counts(served, log)
    num_requests = int(os.environ.get("PREP_STORM", "400"))
    server = psutil.Process(served.pid)
    processes = [server, *server.children()]
    chance = random.Random(0)

    address = httpx.URL(served.url)

    async def run(count: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        waiting = [(number, chance.random() < 0.2) for number in range(count)]

        async def work() -> None:
            client = RawClient(address.host, address.port or 0, "secret")
            while waiting:
                number, hangs_up = waiting.pop()
                found[number] = await one(client, number, hangs_up)
            await client.close()

        await asyncio.gather(*(work() for _ in range(max(200, num_requests // 10))))
        return found

    asyncio.run(run(num_requests // 4))
    files, memory = (
        [process.num_fds() for process in processes],
        [process.memory_info().rss for process in processes],
    )
    answers = asyncio.run(run(num_requests))
    assert len(answers) == num_requests
    assert sum(answer is None for answer in answers.values()) > num_requests // 10, "some have hung up"
    with LLM("shop", num_gpu_blocks_override=int(BLOCKS)) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        prompts = [f"Order number {number}, please" for number in range(40)]
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    for number, answer in answers.items():
        if number % 20 == 0:
            assert answer == 400
        elif answer is not None:
            assert answer == expected[number % 40], number
    while level(served, "num_requests_running") or level(served, "kv_cache_usage_perc"):
        httpx.post(
            f"{served.url}/v1/completions", headers={"Authorization": "Bearer secret"}, timeout=30,
            json={"prompt": "a", "max_tokens": 1},
        )  # fmt: skip
    scraped, logged = (after - before for after, before in zip(counts(served, log), earlier, strict=True))
    assert scraped == logged and logged["request_success_total/abort"] > num_requests // 20
    for each, num_files, rss in zip(processes, files, memory, strict=True):
        assert each.num_fds() <= num_files + 5
        assert each.memory_info().rss < 1.05 * rss + (4 << 20)


def test_a_client_that_hangs_up_frees_its_blocks(served: ChildServer) -> None:
    headers = {"Authorization": "Bearer secret"}
    name = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="shop"}'
    before, body = metrics(served)[name], {"prompt": "a", "max_tokens": 1800, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=0.1)
    streamed = {**body, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=streamed, headers=headers) as response:
        assert next(response.iter_lines()).startswith("data: ")
    while metrics(served)[name] < before + 2:
        assert served.is_running
    assert httpx.post(f"{served.url}/reset_prefix_cache", headers=headers).json() == {"success": True}


def test_after_sigterm_running_requests_finish_and_new_ones_go_elsewhere(start: Start) -> None:
    served = start(*OPTIONS)

    async def run() -> None:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "return_token_ids": True}
            running = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(20)]
            await until(lambda: level(served, "num_requests_running") == 20)
            served.send_signal(signal.SIGTERM)

            async def is_draining() -> bool:
                return (await client.get("/health")).status_code != 200

            await until(is_draining)
            assert (await client.post("/v1/completions", json={"prompt": "b"})).status_code == 503
            for each in await asyncio.gather(*running):
                assert len(each.json()["choices"][0]["token_ids"]) == 400

    asyncio.run(run())
    assert served.exit_code(30) == 0


def test_a_killed_engine_ends_its_requests_and_the_server(start: Start) -> None:
    served = start(*OPTIONS)
    [engine] = psutil.Process(served.pid).children()

    async def run() -> None:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            # More than the cache holds at once, so that it cannot end between the look at the level and the kill.
            body = {"prompt": "a", "n": 128, "max_tokens": 1900, "ignore_eos": True}
            running = asyncio.create_task(client.post("/v1/completions", json=body))
            await until(lambda: level(served, "num_requests_running") >= 1)
            engine.kill()
            response = await running
            assert response.status_code == 500 and "SIGKILL" in response.json()["error"]["message"]

    asyncio.run(run())
    assert served.exit_code(30) == 1
    again = start(*OPTIONS, port=served.port)
    assert again.url == served.url and httpx.get(f"{again.url}/health").status_code == 200


def test_requests_of_a_stalled_engine_end_in_time_and_later_ones_are_served(start: Start) -> None:
    served = start(*OPTIONS, "--request-timeout", "2")
    [engine] = psutil.Process(served.pid).children()
    body = {"prompt": "a", "max_tokens": 1900, "ignore_eos": True}

    async def run() -> None:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as begun:
                lines = begun.aiter_lines()
                assert (await anext(lines)).startswith("data: {")
                engine.suspend()
                refused = await client.post("/v1/completions", json=body)
                assert refused.status_code == 408 and refused.json()["error"]["type"] == "TimeoutError"
                assert '"code":408' in "".join([line async for line in lines])
            engine.resume()
            assert (await client.post("/v1/completions", json={**body, "max_tokens": 2})).status_code == 200

            async def is_reset() -> bool:
                return bool((await client.post("/reset_prefix_cache")).json()["success"])

            await until(is_reset)

    asyncio.run(run())
    served.send_signal(signal.SIGTERM)
    assert served.exit_code(30) == 0


def test_a_stopped_engine_with_a_full_pipe_does_not_keep_the_server_from_ending(start: Start) -> None:
    num_requests = 80
    most = ("--max-num-queued-reqs", str(num_requests - 32))  # beside the 32 of --max-num-seqs
    served = start(*OPTIONS, *most, "--drain-timeout", "1")
    [engine] = psutil.Process(served.pid).children()
    engine.suspend()

    async def run() -> None:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            body = {"prompt": [300] * 1900, "max_tokens": 2}
            post = partial(client.post, "/v1/completions", json=body)
            jobs = [asyncio.create_task(post()) for _ in range(num_requests + 1)]
            [refused], _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            assert refused.result().status_code == 429, "the server holds all others"
            served.send_signal(signal.SIGTERM)
            await asyncio.gather(*jobs, return_exceptions=True)

    asyncio.run(run())
    assert served.exit_code(30) is not None and not engine.is_running()


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(served: ChildServer) -> None:
    import subprocess
    import sys

    port = served.url.rsplit(":", 1)[1]
    ended = subprocess.run(
        [sys.executable, "-m", "app.cli.main", "serve", "shop", "--port", port],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 3 and "cannot listen" in ended.stderr and "Traceback" not in ended.stderr


def test_a_sleeping_engine_gives_its_memory_back_and_wakes_up_with_its_adapters(start: Start) -> None:
    served = start(*OPTIONS, "--enable-sleep-mode", "--lora-modules", "recommend=shop-lora-recommend")
    server = psutil.Process(served.pid)
    body = {"prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with httpx.Client(base_url=served.url, timeout=60) as client:
        before = [
            client.post("/v1/completions", json={**body, "model": name}).json()["choices"][0]["text"]
            for name in ("shop", "recommend")
        ]
        long = {**body, "max_tokens": 1500, "stream": True}
        with client.stream("POST", "/v1/completions", json=long) as running:
            lines = running.iter_lines()
            next(lines)
            assert client.post("/sleep").json() == {"status": "sleeping", "level": 1}
            assert '"finish_reason":"abort"' in "".join(lines), "it is told, not left waiting"
        assert not server.children() and client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert client.post("/v1/completions", json=body).status_code == 503
        assert (
            client.post("/reset_prefix_cache").status_code == 400 and client.get("/health").status_code == 200
        )
        state = 'vllm:engine_sleep_state{{engine="0",model_name="shop",sleep_state="{}"}}'
        assert (
            metrics(served)[state.format("awake")],
            metrics(served)[state.format("weights_offloaded")],
        ) == (0, 1)
        assert client.post("/sleep", params={"level": 7}).status_code == 400
        assert client.post("/wake_up").json()["status"] == "awake"
        after = [
            client.post("/v1/completions", json={**body, "model": name}).json()["choices"][0]["text"]
            for name in ("shop", "recommend")
        ]
        assert before == after and before[0] != before[1]
        assert client.post("/wake_up").status_code == 200 and len(server.children()) == 1
