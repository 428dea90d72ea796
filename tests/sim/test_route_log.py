"""The record of a simulated fleet's routing: neutral, with true reasons, and damage is a sentence."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.sim.fleet import Fleet, FleetReport
from engine.sim.memory import make_deployment
from engine.sim.route_log import MAX_SAMPLES, RouteLog, read_routes
from engine.sim.router import ROUTERS, make_router
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload

DEPLOYMENT = make_deployment(model="llama-3-8b", gpu="l4", max_model_len=2048)


def run(router: str, log: RouteLog | None = None, replicas: int = 3, num_requests: int = 120) -> FleetReport:
    work = Workload(
        num_requests,
        12.0,
        Lengths(400, 400),
        Lengths(40, 40),
        num_prefixes=5,
        prefix_len=320,
        max_model_len=2048,
    )
    fleet = Fleet(lambda: make_engine(DEPLOYMENT, num_blocks=300), replicas, make_router(router), log=log)
    return fleet.run(work)


@pytest.mark.parametrize("router", ROUTERS)
def test_recording_changes_no_figure_of_the_run(router: str) -> None:
    log = RouteLog(router, interval=0.07)
    recorded, plain = run(router, log), run(router)
    assert asdict(recorded) == asdict(plain)
    counts = [sum(choice.replica == replica.index for choice in log.choices) for replica in recorded.replicas]
    assert counts == [replica.num_requests for replica in recorded.replicas]
    assert [choice.request for choice in log.choices] == list(range(120))


def test_every_reason_is_true_of_what_the_router_saw() -> None:
    log = RouteLog("prefix-affinity", 0.1)
    run("prefix-affinity", log)
    for choice in log.choices:
        mine = next(each for each in choice.seen if each.replica == choice.replica)
        best = max(each.hit for each in choice.seen)
        if choice.kind == "prefix":
            assert mine.hit == best > 0 and f"{mine.hit} blocks" in choice.reason
        elif "no replica has" in choice.reason:
            assert best == 0 and mine.load == min(each.load for each in choice.seen)
        else:
            assert mine.hit < best and "more than" in choice.reason
    assert {choice.kind for choice in log.choices} == {"prefix", "load"}
    for name in ("least-loaded", "two-choices"):
        run(name, log := RouteLog(name, 0.1))
        for choice in log.choices:
            mine = next(each for each in choice.seen if each.replica == choice.replica)
            assert mine.load == min(each.load for each in choice.seen) and str(mine.load) in choice.reason
    assert all(len(choice.seen) == 2 for choice in log.choices), "two-choices looks at two replicas"
    run("round-robin", log := RouteLog("round-robin", 0.1))
    assert {choice.kind for choice in log.choices} == {"turn"}
    run("least-loaded", log := RouteLog("least-loaded", 0.1), replicas=1)
    assert {choice.kind for choice in log.choices} == {"only"}


def test_a_bounded_ring_names_the_replica_that_was_full() -> None:
    log = RouteLog("bounded-load", 0.1)
    run("bounded-load", log)
    moved = [choice for choice in log.choices if choice.kind == "load"]
    assert moved and {choice.kind for choice in log.choices} == {"ring", "load"}
    for choice in moved:
        owner = int(choice.reason.split()[1].rstrip(","))
        assert owner != choice.replica
        loads = {each.replica: each.load for each in choice.seen}
        assert loads[owner] > loads[choice.replica]


def test_levels_end_with_empty_replicas_and_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    log = RouteLog("least-loaded", 0.001)
    run("least-loaded", log)
    assert len(log.samples) < MAX_SAMPLES and log.interval > 0.001
    times = [sample.time for sample in log.samples]
    assert times == sorted(set(times))
    assert (
        not any([*log.samples[-1].running, *log.samples[-1].waiting])
        and max(map(max, [s.running for s in log.samples])) > 1
    )
    assert all(0 <= level <= 1 for sample in log.samples for level in sample.kv)


def test_a_saved_log_is_read_back_and_a_damaged_one_is_a_sentence(tmp_path: Path) -> None:
    log = RouteLog("least-loaded", 0.5)
    run("least-loaded", log, num_requests=10)
    log.save(path := tmp_path / "routes.json")
    found = read_routes(path.read_text())
    assert (found.choices, found.samples, found.router) == (log.choices, log.samples, "least-loaded")
    whole = json.loads(path.read_text())
    wrong_replica = {**whole, "choices": [{**whole["choices"][0], "replica": 99}]}
    wrong_level = {**whole, "samples": [{**whole["samples"][0], "kv": ["much"] * 3}]}
    nested = "[" * 200_000
    damaged = (
        {**whole, "format": "prep routes 9"},
        wrong_replica,
        wrong_level,
        {**whole, "choices": [{**whole["choices"][0], "kind": "mood"}]},
        {**whole, "choices": [{**whole["choices"][0], "time": "now"}]},
        {**whole, "names": ["a"]},
        {**whole, "choices": []},
        {**whole, "samples": 7},
    )
    for text in ("", "{}", "[1, 2]", nested, *map(json.dumps, damaged)):
        with pytest.raises(ConfigError):
            read_routes(text)
