"""Adapters and KV events of real servers behind a real gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.server.child_server import ChildServer
from tests.server.processes import start_gateway, start_server
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

OPTIONS = (
    "--num-gpu-blocks-override", "256", "--enable-prompt-tokens-details", "--max-loras", "1",
    "--lora-modules", "recommend=shop-lora-recommend", "--lora-modules", "support=shop-lora-support",
)  # fmt: skip

StartGateway = Callable[[str], httpx.Client]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[list[ChildServer]]:
    with ExitStack() as stack:
        yield [
            start_server(stack, folder, *OPTIONS, "--kv-events-config", json.dumps(events(folder, number)))
            for number in range(2)
        ]


def endpoint(folder: Path, number: int, kind: str) -> str:
    return f"{folder}/{kind}{number}"


def events(folder: Path, number: int) -> dict[str, str]:
    paths = {kind: f"ipc://{endpoint(folder, number, kind)}" for kind in ("events", "replay")}
    return {"publisher": "zmq", "endpoint": paths["events"], "replay_endpoint": paths["replay"]}


@pytest.fixture
def start(servers: list[ChildServer], folder: Path, tmp_path: Path) -> Iterator[StartGateway]:
    """Start a gateway with a policy in front of both servers."""
    with ExitStack() as stack:

        def start(policy: str) -> httpx.Client:
            listed = ""
            for n, each in enumerate(servers):
                ends = events(folder, n)
                listed += f"  - {{name: s{n}, url: '{each.url}', kv_events: '{ends['endpoint']}', "
                listed += f"kv_events_replay: '{ends['replay_endpoint']}'}}\n"
            file = tmp_path / f"{policy}.yaml"
            file.write_text(f"policy: {policy}\nhealth: {{every_s: 0.2}}\nbackends:\n{listed}")
            url = start_gateway(stack, tmp_path, file).url
            return stack.enter_context(httpx.Client(base_url=url, timeout=60))

        yield start


def ask(client: httpx.Client, request_id: str = "", **body: Any) -> str:
    """Return the backend that answered."""
    headers = {"X-Request-Id": request_id} if request_id else {}
    response = client.post(
        "/v1/completions", json={"max_tokens": 3, "temperature": 0, **body}, headers=headers
    )
    assert response.status_code == 200, response.text
    return response.headers["x-prep-backend"]


def explain(client: httpx.Client, request_id: str) -> dict[str, Any]:
    return dict(client.get(f"/gateway/decisions/{request_id}").json())


def test_adapters_stay_on_their_servers_until_one_of_them_is_hot(start: StartGateway) -> None:
    client = start("lora-affinity")

    def sees_the_adapters() -> bool:
        ask(client, "look", model="recommend", prompt="Hi")
        return "adapter 'recommend'" in explain(client, "look")["reason"]

    wait_until(sees_the_adapters)
    homes = {
        name: {ask(client, model=name, prompt=f"Hi {n}") for n in range(4)}
        for name in ("recommend", "support")
    }
    assert all(len(home) == 1 for home in homes.values()) and homes["recommend"] != homes["support"]
    ask(client, "why", model="support", prompt="Why?")
    assert "adapter 'support' is loaded there" in explain(client, "why")["sentence"]
    long = {"model": "support", "max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(8) as pool:
        went = list(pool.map(lambda n: ask(client, f"hot-{n}", prompt=f"Tell {n}", **long), range(8)))
    assert set(went) == {"s0", "s1"} and went.count(*homes["support"]) >= 4
    reasons = [explain(client, f"hot-{n}")["reason"] for n in range(8)]
    assert any("at their bound" in reason for reason in reasons), reasons


def cached(client: httpx.Client, request_id: str) -> dict[str, int]:
    """Return the tokens that each backend was believed to cache, by its events."""
    seen = explain(client, request_id)["seen"]
    assert {each["unit"] for each in seen} == {"tokens"}, seen
    return {each["name"]: each["hit"] for each in seen}


def test_the_gateway_knows_what_each_server_caches_and_follows_evictions(
    servers: list[ChildServer], start: StartGateway
) -> None:
    prompt = "Ann asks for the opening hours of the shop in Basel. " * 8
    direct = dict(
        zip(("s0", "s1"), (httpx.Client(base_url=server.url, timeout=60) for server in servers), strict=True)
    )
    for client in direct.values():
        assert client.post("/reset_prefix_cache").json() == {"success": True}
    ask_directly(direct["s1"], prompt)
    client = start("prefix-affinity")  # later than the events: it learns them by the replay
    wait_until(
        lambda: kv_blocks(client)["s0"] == 0 and 0 < (kv_blocks(client)["s1"] or 0) < 20
    )  # all is read
    assert ask(client, "one", prompt=prompt + "And now?") == "s1"
    believed = cached(client, "one")
    real = ask_directly(direct["s1"], prompt + "And then?")
    assert believed == {"s0": 0, "s1": real} and real > 64
    sentence = explain(client, "one")["sentence"]
    assert re.search(
        rf"went to s1: {real} of \d+ prompt tokens are cached there by its KV events", sentence
    ), sentence
    for number in range(40):  # 256 blocks: the oldest leave
        ask_directly(direct["s1"], f"Number {number}: " + f"and {number} more " * 60)
    ask_directly(direct["s0"], prompt)
    wait_until(lambda: (kv_blocks(client)["s0"] or 0) > 0)
    wait_until(lambda: ask(client, "two", prompt=prompt + "Still?") == "s0")
    assert cached(client, "two")["s1"] == 0 < cached(client, "two")["s0"]
    assert direct["s0"].post("/reset_prefix_cache").json() == {"success": True}
    wait_until(lambda: kv_blocks(client)["s0"] == 0)
    ask(client, "three", prompt=prompt)
    assert (
        cached(client, "three") == {"s0": 0, "s1": 0} and "no backend" in explain(client, "three")["reason"]
    )
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 3}
    went = client.post("/v1/chat/completions", json=chat).headers["x-prep-backend"]
    wait_until(lambda: chat_goes_on(client, chat, went))


def chat_goes_on(client: httpx.Client, chat: dict[str, Any], home: str) -> bool:
    response = client.post("/v1/chat/completions", json=chat, headers={"X-Request-Id": "chat"})
    assert response.headers["x-prep-backend"] == home
    return cached(client, "chat")[home] > 64


def ask_directly(client: httpx.Client, prompt: str) -> int:
    """Return the prompt tokens that were cached."""
    response = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2, "temperature": 0})
    return int((response.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0))


def kv_blocks(client: httpx.Client) -> dict[str, int | None]:
    return {
        backend["name"]: backend["kv_blocks"] for backend in client.get("/gateway/state").json()["backends"]
    }


def test_true_prefixes_hit_more_often_than_round_robin(
    servers: list[ChildServer], start: StartGateway
) -> None:
    rates = {policy: hit_rate(servers, start(policy)) for policy in ("round-robin", "prefix-affinity")}
    print(rates)
    assert rates["prefix-affinity"] > rates["round-robin"] + 0.1, rates


def hit_rate(servers: list[ChildServer], client: httpx.Client) -> float:
    """Return the share of cached prompt tokens over five conversations of four turns, by the servers' own counters."""
    for server in servers:
        httpx.post(f"{server.url}/reset_prefix_cache")
    before = [prefix_counters(server) for server in servers]
    for turn in range(4):
        for name in ("Ann", "Bob", "Eve", "Kim", "Leo"):
            ask(client, prompt=f"{name} wants to know the price of tea. " * (5 + 3 * turn))
    after = [prefix_counters(server) for server in servers]
    hits, queries = (sum(b[n] - a[n] for a, b in zip(before, after, strict=True)) for n in range(2))
    return hits / queries


def prefix_counters(server: ChildServer) -> tuple[float, float]:
    text = httpx.get(f"{server.url}/metrics").text
    found = [
        re.search(rf"^vllm:prefix_cache_{name}_total{{.*}} (.*)$", text, re.MULTILINE)
        for name in ("hits", "queries")
    ]
    assert found[0] is not None and found[1] is not None
    return float(found[0][1]), float(found[1][1])
