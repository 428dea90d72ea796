"""`prep fleet up` with the shipped model: rolled and scaled under load without a lost request, then killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from app.cli.main import app
from engine.fleet.folder import ask, choose
from engine.server.child_server import PREP, ChildServer
from engine.server.load_client import Load, Objective, due
from engine.sim.workload import Lengths, Workload
from tests.waiting import has_ended, wait_until

pytestmark = pytest.mark.slow

SETTINGS = """
name: real
replicas: 2
warm_pool: 1
oversubscribe: true
policy: least-loaded
engine: {max_num_seqs: 16, max_model_len: 512, num_gpu_blocks_override: 257}
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildServer]:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    file = tmp_path / "fleet.yaml"
    file.write_text(SETTINGS)
    log = tmp_path / "log"
    with ChildServer(PREP, args=["fleet", "up", str(file)], name="the fleet", log=log, grace_s=40) as server:
        wait_until(lambda: states() == ["ready", "ready", "warm"])
        yield server


def status() -> dict[str, Any]:
    return ask(choose("real"), "status")


def states() -> list[str]:
    return sorted(replica["state"] for replica in status()["replicas"])


def prep(*words: str) -> str:
    result = CliRunner().invoke(app, ["fleet", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_no_request_is_lost_while_the_fleet_is_rolled_and_scaled(fleet: ChildServer) -> None:
    first = {replica["name"]: replica for replica in status()["replicas"]}
    stages = first["r1"]["stages"]
    assert {"imports", "weights", "adapters and warm-up"} <= stages.keys()
    assert 0 < sum(stages.values()) <= first["r1"]["start_s"] + 0.1

    async def load_while_changing() -> Load:
        load = Load(fleet.url, "", None, Objective(), timeout_s=60)
        work = Workload(10_000, 12.0, Lengths(16, 64), Lengths(4, 24))
        loading = asyncio.create_task(load.run(due(work, 2048)))
        for words in (["roll"], ["scale", "1"]):
            await asyncio.to_thread(prep, *words)
            await asyncio.to_thread(
                wait_until, lambda: not status()["rolling"] and "draining" not in states()
            )
        loading.cancel()
        await asyncio.wait([loading])
        return load

    sent = asyncio.run(load_while_changing()).sent
    ended = [each for each in sent if each.num_tokens or each.error]
    assert len(ended) > 50 and not [each.error for each in ended if each.error]
    assert not set(first) & {replica["name"] for replica in status()["replicas"]}
    kinds = [event["kind"] for event in status()["events"]]
    assert kinds.count("stopped") >= 3 and "died" not in kinds

    found = json.loads(prep("status", "real", "--json"))
    assert found["wanted"] == 1 and "cold start of r" in prep("status")
    warm = {replica["name"] for replica in found["replicas"] if replica["state"] == "warm"}
    prep("scale", "2")
    wait_until(lambda: states().count("ready") == 2)
    ready = {replica["name"] for replica in status()["replicas"] if replica["state"] == "ready"}
    assert warm and warm <= ready, "from the warm pool"

    family = psutil.Process(fleet.pid).children(recursive=True)
    assert len(family) >= 5
    psutil.Process(fleet.pid).kill()
    wait_until(lambda: all(has_ended(each) for each in family))
    wait_until(lambda: not (Path(fleet.log or "").parent / "fleets/real").exists())
