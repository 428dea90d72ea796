"""Replicas of the server as a Ray Serve application, on a real local Ray."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from engine import LLM, SamplingParams
from engine.config import ConfigError
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
BLOCKS = 128


@pytest.fixture(scope="module")
def serve() -> Any:
    pytest.importorskip("ray.serve", reason="needs pip install 'ray[serve]'")
    from ray import serve

    return serve


@pytest.fixture(scope="module")
def url(serve: Any) -> Iterator[str]:
    import ray

    from engine.exec.ray import connect
    from engine.server.ray_serve import build

    args = {  # strings, as `serve run NAME=VALUE` gives them
        "replicas": "2",
        "engine": f'{{"num_gpu_blocks_override": {BLOCKS}}}',
        "server": '{"api_keys": ["secret"]}',
    }
    connect()
    try:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build(args), name="prep", route_prefix="/")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60, headers={"Authorization": "Bearer secret"}) as client:
        yield client


def test_both_replicas_answer_as_the_engine_does(client: httpx.Client, url: str) -> None:
    prompts = [f"Number {number}: the price of tea is" for number in range(12)]
    with LLM(model="shop", num_gpu_blocks_override=BLOCKS) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=8, temperature=0))
    for prompt, output in zip(prompts, outputs, strict=True):
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == output.outputs[0].text
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "Hi"}).status_code == 401
    assert client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": -1}).status_code == 400
    assert len(replicas(client, lambda counts: len(counts) == 2)) == 2


def test_a_stream_passes_through_as_it_is_made_and_ends_when_its_client_leaves(client: httpx.Client) -> None:
    body = {"prompt": "Tell me", "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0}
    whole = client.post("/v1/completions", json={**body, "stream": False}).json()["choices"][0]["text"]
    pieces = []
    with client.stream("POST", "/v1/completions", json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
    assert "".join(pieces) == whole and len(pieces) > 100
    with client.stream("POST", "/v1/completions", json={**body, "max_tokens": 1500}) as leaving:
        assert next(leaving.iter_lines()).startswith("data: ")
        replicas(client, lambda counts: any(counts.values()))  # the first token did not wait for the last one
    replicas(client, lambda counts: len(counts) == 2 and not any(counts.values()))


def test_a_replica_whose_engine_died_is_replaced(client: httpx.Client) -> None:
    before = replicas(client, lambda counts: len(counts) == 2)
    engines = [
        child
        for child in psutil.Process().children(recursive=True)
        if (parent := child.parent()) is not None and "ServeReplica" in " ".join(parent.cmdline())
        and "resource_tracker" not in " ".join(child.cmdline())
    ]  # fmt: skip
    assert len(engines) == 2, [engine.cmdline() for engine in engines]
    engines[0].kill()
    body = {"prompt": "Hi", "max_tokens": 2}
    answers = [client.post("/v1/completions", json=body).status_code for _ in range(40)]
    assert {200} < set(answers) <= {200, 500, 503}, "an idle server learns of it by its next request"
    after = replicas(client, lambda counts: len(counts.keys() - before.keys()) == 1)
    assert len(after) == 3 and client.post("/v1/completions", json=body).status_code == 200


def replicas(client: httpx.Client, holds: Any) -> dict[float, float]:
    """Ask for metrics until both replicas' say so: time of a replica's start -> running requests."""
    found: dict[float, float] = {}

    def asked() -> bool:
        if holds(found):
            return True
        response = client.get("/metrics")
        if response.status_code != 200:
            return False  # its engine has just died
        lines = response.text.splitlines()
        value = {
            line.split("{")[0].split(" ")[0]: float(line.split()[-1])
            for line in lines
            if line[:1] not in "# "
        }
        found[value["vllm:generation_tokens_created"]] = value["vllm:num_requests_running"]
        return False

    wait_until(asked, limit_s=180)
    return found


def test_wrong_arguments_are_an_error(serve: Any) -> None:
    from engine.server.ray_serve import build

    with pytest.raises(ConfigError, match="max_num_seq"):
        build({"engine": {"max_num_seq": 3}})
    with pytest.raises(ConfigError, match="hots"):
        build({"server": {"hots": "x"}})
    with pytest.raises(ValueError, match="replica"):
        build({"replica": 2})
