"""A fleet of real processes whose model is a constant: start, route, scale, drain, replace, wake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from engine.config import ConfigError
from engine.fleet.config import FleetSettings
from engine.fleet.events import EventLog
from engine.fleet.fleet import Fleet
from engine.fleet.run import gateway_settings, routes
from engine.gateway.app import create_app
from engine.gateway.proxy import Gateway
from engine.server.errors import ApiError
from prep_common.child_process import ProcessEnded
from tests.waiting import until

TINY = "tests.fleet.tiny_server"
KEY = {"Authorization": "Bearer key"}


class Running:
    """A fleet and a client of its gateway, in this event loop."""

    def __init__(self, fleet: Fleet, client: httpx.AsyncClient) -> None:
        self.fleet, self.client = fleet, client

    async def until(self, holds: Callable[[], bool]) -> None:
        async def ticked() -> bool:
            if holds():
                return True
            await self.fleet.tick()
            return False

        await until(ticked)

    async def until_ready(self, number: int) -> None:
        await self.until(lambda: self.states() == ["ready"] * number)

    def states(self) -> list[str]:
        return [replica.state for replica in self.fleet.replicas]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.fleet.events.events]

    async def ask(self, prompt: str = "Hi") -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": prompt})

    async def waiting(self, number: int) -> list[asyncio.Task[httpx.Response]]:
        """Send requests that wait for their release; return when replicas have them."""
        tasks = [asyncio.create_task(self.ask("wait")) for _ in range(number)]
        await self.until(lambda: sum(backend.load for backend in self.fleet.gateway.backends) == number)
        return tasks

    async def release(self) -> None:
        for replica in self.fleet.replicas:
            await self.client.post(f"{replica.server.url}/release", json={})


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Running]:
    made = FleetSettings.model_validate(
        {"replicas": 2, "policy": "least-loaded", "drain_timeout_s": 5, **settings}
    )
    gateway = Gateway(gateway_settings(made, "key"))
    fleet = Fleet(made, gateway, folder, EventLog(folder / "events.jsonl"), module=TINY)
    app = create_app(gateway, routes(fleet, lambda: None))
    here, away = httpx.ASGITransport(app), httpx.AsyncHTTPTransport()
    mounts = {"http://fleet": here, "all://": away}
    async with httpx.AsyncClient(base_url="http://fleet", mounts=mounts, timeout=60) as client:
        try:
            yield Running(fleet, client)
        finally:
            servers = [replica.server for replica in fleet.replicas]
            await fleet.close()
            await gateway.close()
            assert not any(server.is_running for server in servers)


async def test_as_many_replicas_as_wanted_are_started_and_share_the_requests(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.until_ready(2)
        names = {(await it.ask()).headers["x-prep-backend"] for _ in range(4)}
        assert names == {"r1", "r2"}
        found = (await it.client.get("/fleet/status", headers=KEY)).json()
        assert [replica["requests"] for replica in found["replicas"]] == [2, 2] and found["requests"] == 4
        assert all(
            replica["memory_bytes"] > 1 << 20 and replica["start_s"] > 0 for replica in found["replicas"]
        )
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines[:2]] == ["start", "start"] and "time" in lines[0]


async def test_the_key_guards_what_steers_the_fleet(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        assert (await it.client.get("/fleet/status")).status_code == 401
        for path in ("scale", "drain", "roll", "down"):
            assert (await it.client.post(f"/fleet/{path}", json={})).status_code == 401


async def test_a_replica_that_dies_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.until_ready(2)
        first = it.fleet.replicas[0]
        psutil.Process(first.server.pid).kill()
        await it.until(lambda: first not in it.fleet.replicas)
        await it.until_ready(2)
        [died] = [event for event in it.fleet.events.events if event.kind == "died"]
        assert died.replica == "r1" and "SIGKILL" in died.why
        assert {(await it.ask()).headers["x-prep-backend"] for _ in range(4)} == {"r2", "r3"}


async def test_a_fleet_whose_replicas_cannot_start_gives_up_with_their_last_words(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1, model="tiny/broken") as it:
        with pytest.raises(ProcessEnded, match="exit code 1.*this server is broken"):
            await it.until(lambda: False)
        assert it.kinds().count("died") == 3


async def test_settings_that_the_server_refuses_end_the_fleet_at_the_first_start(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1, model="tiny/refused") as it:
        with pytest.raises(
            ConfigError, match=r"^prep serve refuses the settings: max_num_seqs must be .* got 0$"
        ):
            await it.until(lambda: False)
        assert it.kinds().count("died") == 1


async def test_a_drained_replica_finishes_its_requests_before_it_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.until_ready(2)
        tasks = await it.waiting(2)
        assert it.fleet.scale(1) == 1
        await it.until(lambda: "draining" in it.states())
        for _ in range(5):
            await it.fleet.tick()
            assert (await it.ask()).status_code == 200, "the other one answers"
        assert sorted(it.states()) == ["draining", "ready"] and not any(task.done() for task in tasks)
        await it.release()
        assert [(await task).status_code for task in tasks] == [200, 200]
        await it.until_ready(1)


async def test_drain_names_the_replica_and_wants_one_less(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.until_ready(2)
        response = await it.client.post("/fleet/drain", json={"replica": "r1"}, headers=KEY)
        assert response.json() == {"replica": "r1", "state": "draining", "wanted": 1}
        await it.until(lambda: [replica.name for replica in it.fleet.replicas] == ["r2"])
        for name, status in (("r2", 400), ("r9", 404)):
            refused = await it.client.post("/fleet/drain", json={"replica": name}, headers=KEY)
            assert refused.status_code == status
    assert it.fleet.wanted == 1


@pytest.mark.parametrize("number", [0, 65, "2", True, None])
async def test_impossible_sizes_are_refused(tmp_path: Path, number: Any) -> None:
    async with running(tmp_path) as it:
        response = await it.client.post("/fleet/scale", json={"replicas": number}, headers=KEY)
        assert response.status_code == 400 and it.fleet.wanted == 2


async def test_a_roll_replaces_every_replica_and_loses_no_request(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        await it.until_ready(2)
        tasks = await it.waiting(2)
        assert it.fleet.roll() == ["r1", "r2"]
        with pytest.raises(ApiError, match="under way"):
            it.fleet.roll()
        answers: list[int] = []

        async def load() -> None:
            while True:
                answers.append((await it.ask()).status_code)

        loading = asyncio.create_task(load())
        await it.until(lambda: "draining" in it.states())
        await it.release()
        await it.until(lambda: [replica.name for replica in it.fleet.replicas] == ["r3", "r4"])
        assert [(await task).status_code for task in tasks] == [200, 200]
        await it.until(lambda: it.fleet.events.events[-1].why == "done")
        loading.cancel()
        assert len(answers) > 10 and set(answers) == {200}


async def test_a_warm_replica_takes_the_place_without_a_start_and_the_pool_refills(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1, warm_pool=1) as it:
        await it.until(lambda: sorted(it.states()) == ["ready", "warm"])
        it.fleet.scale(2)
        await it.fleet.tick()
        assert it.states().count("ready") == 2, "in one tick"
        await it.until(lambda: sorted(it.states()) == ["ready", "ready", "warm"])
        it.fleet.scale(1)
        await it.until(lambda: sorted(it.states()) == ["ready", "warm"])


SCALE = {"signal": "load", "out_above": 1.5, "in_below": 0.5, "sustain_out": 0, "sustain_in": 0,
         "cooldown_out": 0, "cooldown_in": 0, "interval": 0.01, "max_replicas": 2}  # fmt: skip


async def test_the_autoscaler_follows_the_load_and_logs_why(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1, autoscale=SCALE) as it:
        await it.until_ready(1)
        tasks = await it.waiting(2)
        await it.until_ready(2)
        await it.release()
        await asyncio.gather(*tasks)
        await it.until_ready(1)
        changes = [event for event in it.fleet.events.events if event.kind in ("out", "in")]
        assert [(event.kind, event.replicas, event.why) for event in changes] == [
            ("out", 2, "load above 1.5"),
            ("in", 1, "load below 0.5"),
        ]
        assert it.fleet.state()["thrash"] == 1, "within 15 minutes"


async def test_the_queue_signal_is_what_the_replicas_metrics_say(tmp_path: Path) -> None:
    scale = {**SCALE, "signal": "queue", "out_above": 100, "in_below": 6, "min_replicas": 2}
    async with running(tmp_path, replicas=2, autoscale=scale) as it:
        await it.until_ready(2)
        await it.until(lambda: it.fleet.signal == 7.0)


async def test_a_fleet_of_zero_replicas_holds_a_request_until_one_is_ready(tmp_path: Path) -> None:
    scale = {**SCALE, "min_replicas": 0, "max_replicas": 1}
    async with running(tmp_path, replicas=0, autoscale=scale, hold={"most": 1}) as it:
        await it.fleet.tick()
        assert it.fleet.replicas == []
        held = asyncio.create_task(it.ask())
        await it.until(lambda: it.fleet.gateway.num_held == 1)
        refused = await it.ask()
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        await it.until(lambda: held.done())
        assert (await held).headers["x-prep-backend"] == "r1"
        await it.until(lambda: it.fleet.wanted == 0 and it.fleet.replicas == [])
        assert [event.why for event in it.fleet.events.events if event.kind == "out"] == ["a request woke it"]
