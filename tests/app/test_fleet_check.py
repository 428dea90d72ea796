"""The simulator of `prep bench fleet`: it routes as the gateway does, and its steps last as long as paced ones."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from app.bench.fleet_check import SCENARIOS, Figures, Outcome, figures
from app.bench.fleet_model import GatewayRouter, Model, paced
from app.bench.live_fleet import PACE, live_fleet
from engine.engine_core import EngineCore
from engine.server.load_client import Objective, Sent
from engine.sim.recorder import RequestRecord
from engine.sim.shared_cores import Change, Slowdown
from engine.sim.workload import SimRequest
from interview.drills import faults


def replicas_of(records: list[RequestRecord]) -> list[int]:
    return [each.replica for each in sorted(records, key=lambda record: record.request.index)]


def run(requests: list[SimRequest], replicas: int, policy: str, **so_far: object) -> list[int]:
    router = GatewayRouter(policy, **so_far)
    return replicas_of(paced().run(requests, replicas, router))


def apart(count: int, prefix_id: int = -1) -> list[SimRequest]:
    """Requests so far apart that each finds idle replicas."""
    return [SimRequest(index, 10.0 * index, 96, 4, prefix_id, 80) for index in range(count)]


def test_a_paced_request_takes_its_steps_and_the_http_path_is_apart() -> None:
    model = Model(paced().deployment, rest_s=0.001)
    (record,) = model.alone([SimRequest(0, 0.0, 50, 11)])
    assert record.ttft == pytest.approx(PACE.seconds(50) + 0.001)
    assert record.e2e - record.ttft == pytest.approx(10 * (PACE.seconds(1) + 0.001))


@pytest.mark.parametrize(("prompt", "decodes"), [(48, 0), (0, 5), (100, 3)])
def test_the_live_pace_is_the_simulated_one(
    monkeypatch: pytest.MonkeyPatch, prompt: int, decodes: int
) -> None:
    slept: list[float] = []
    stats = SimpleNamespace(
        num_scheduled_tokens=prompt + decodes, num_prefill_tokens=prompt, num_decode_tokens=decodes
    )
    core = SimpleNamespace(scheduler=SimpleNamespace(requests={"a": None}, stats=stats))
    monkeypatch.setattr(EngineCore, "step", lambda _: "outputs")
    monkeypatch.setattr(faults, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append))
    faults.pace(PACE.step_ms, PACE.token_ms, PACE.token_ms)
    assert EngineCore.step(core) == "outputs"
    assert slept == [pytest.approx(PACE.seconds(prompt + decodes))]


def test_equal_replicas_take_turns_by_their_requests_so_far() -> None:
    assert run(apart(3), 3, "prefix-affinity", num_requests=[5, 2, 4]) == [1, 1, 1]
    assert run(apart(4), 2, "prefix-affinity", num_requests=[1, 0]) == [1, 0, 1, 0]


def test_a_prefix_goes_where_it_was_sent_although_it_is_not_computed_yet() -> None:
    at_once = [SimRequest(index, 0.0, 160, 4, 7, 80) for index in range(3)]
    assert run(at_once, 3, "prefix-affinity", num_requests=[0, 0, 0]) == [0, 0, 0]
    own = [SimRequest(index, 0.0, 160, 4) for index in range(3)]
    assert run(own, 3, "prefix-affinity", num_requests=[0, 0, 0]) == [0, 1, 2]


def test_round_robin_goes_on_from_the_last_turn() -> None:
    first = run(apart(3), 3, "round-robin", num_requests=[0, 0, 0], num_arrivals=0)
    assert run(apart(3), 3, "round-robin", num_requests=[0, 0, 0], num_arrivals=7) == [*first[1:], first[0]]


def test_an_added_replica_gets_requests_once_it_is_ready() -> None:
    records = paced().run(apart(6), 1, GatewayRouter("round-robin", [0]), [Change(5.0, 2, start_s=10.0)])
    found = replicas_of(records)
    assert found[:2] == [0, 0]  # those at 0 s and 10 s
    assert set(found[2:]) == {0, 1}


def test_paced_steps_ignore_slowdowns_and_a_model_without_any_stays_as_it_is() -> None:
    model = paced()
    assert model.slowed([], []) is model
    slowed = model.slowed([Slowdown(2.0, 4.0)], [Slowdown(4.0, 8.0), Slowdown(5.0, 6.0)])
    assert list(slowed.slowdown) == [Slowdown(3.0, 6.0), Slowdown(5.0, 6.0)]
    work = [SimRequest(0, 0.0, 50, 11)]
    assert [each.e2e for each in slowed.alone(work)] == [each.e2e for each in model.alone(work)]


def test_prompts_of_two_rounds_differ_and_their_traffic_does_not() -> None:
    scenario = next(each for each in SCENARIOS if each.num_prefixes)
    first, second = (scenario.requests(4.0, number, seed=1) for number in (1, 9))

    def traffic(requests: list[SimRequest]) -> list[tuple[float, int, int]]:
        return [(request.arrival, request.prompt_len, request.output_len) for request in requests]

    assert traffic(first) == traffic(second)
    tokens = [{token for each in part for token in each.tokens()} for part in (first, second)]
    assert not tokens[0] & tokens[1]


def test_errors_are_of_medians_and_the_spread_is_of_the_live_rounds() -> None:
    live = [Figures(4.0, 0.2, 1.0), Figures(5.0, 0.1, 1.0), Figures(4.0, 0.3, 1.0)]
    outcome = Outcome("three", 32, live, [Figures(4.4, 0.2, 1.1), Figures(4.4, 0.2, 1.2)])
    errors = {figure.name: figure.error for figure in outcome.figures}
    assert errors == pytest.approx({"goodput": 0.1, "ttft_p99": 0.0, "e2e_p99": 0.15})
    assert [figure.spread for figure in outcome.figures] == pytest.approx([0.25, 1.0, 0.0])


def test_goodput_counts_whole_answers_within_both_limits() -> None:
    ends = [(0.1, 1.0, ""), (0.4, 0.9, ""), (0.2, 4.0, ""), (0.0, 0.0, "HTTP 503")]
    sent = [Sent(0.0, 48, first, last, error=error) for first, last, error in ends]
    found = figures(sent, Objective(ttft=0.3, e2e=1.0))
    assert found == Figures(0.25, pytest.approx(0.396), pytest.approx(3.94), num_failed=1)


def test_simulated_answers_include_the_http_path() -> None:
    work = [SimRequest(0, 2.0, 50, 11)]
    model = paced()
    (record,) = model.alone(work)
    (sent,) = replace(model, http_s=0.25).answers(work, 1, GatewayRouter("round-robin"))
    assert (sent.ttft, sent.e2e) == (pytest.approx(record.ttft + 0.25), pytest.approx(record.e2e + 0.25))
    assert sent.num_tokens == 11


@pytest.mark.slow
def test_a_paced_fleet_of_processes_keeps_its_pace_and_ends() -> None:
    with live_fleet("round-robin", 1, is_paced=True) as fleet:
        me = psutil.Process(fleet.address.pid)
        family = [me, *me.children(recursive=True)]
        assert len(family) >= 3  # gateway, server, engine
        sent = fleet.send(fleet.prompts.equal(3, spacing=0.05)).sent
    assert [(each.error, each.num_tokens) for each in sent] == [("", 16)] * 3
    assert all(each.e2e >= PACE.seconds(48) + 15 * PACE.seconds(1) for each in sent)
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
