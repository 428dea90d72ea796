"""Kubernetes' rules, days of traffic, the fluid against the exact fleet, and the comparison of policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from app.cli.sim.autoscale import verdict
from engine.config import ConfigError
from engine.sim.autoscale_race import (
    AS_GOOD,
    CONTENDERS,
    HIGHER,
    LOWER,
    Result,
    Service,
    Tried,
    around,
    race,
)
from engine.sim.day import DayTraffic, moments
from engine.sim.fleet import Fleet
from engine.sim.fluid import TICK, Costs, FluidFleet
from engine.sim.memory import Deployment, make_deployment, plan_memory
from engine.sim.router import make_router
from engine.sim.run import make_engine
from engine.sim.scaling_policies import Hpa, Line, Look
from engine.sim.steady_state import Replica
from engine.sim.workload import SimRequest


@dataclass(frozen=True)
class Traffic:
    deployment: Deployment
    prompt: int
    output: int
    hit_tokens: int = 0


SHORT = Traffic(make_deployment(model="llama-3-70b", gpu="h100", tp=4, dtype="fp8", longest=4096), 3000, 60)


def costs_of(traffic: Traffic) -> Costs:
    held = traffic.prompt + traffic.output // 2
    limit = min(plan_memory(traffic.deployment).num_tokens / held, traffic.deployment.max_num_seqs)
    return Costs(Replica(traffic, limit))


def look(now: float = 0.0, ready: int = 10, starting: int = 0, load: float = 0.0) -> Look:
    return Look(now, ready, starting, load, load, 0.0, load, 0.0)


def hpa(**settings: object) -> Hpa:
    return Hpa(lambda seen: seen.unfinished, 10.0, **settings)


# -- Kubernetes


def test_hpa_wants_ceil_of_current_times_metric_over_target() -> None:
    assert hpa().desired(look(load=151)) == 16  # ceil(10 x 15.1 / 10)


def test_hpa_changes_nothing_within_its_tolerance() -> None:
    assert hpa().desired(look(load=109)) == 10
    assert hpa().desired(look(load=111)) == 12
    assert hpa().desired(look(load=90)) == 10


def test_hpa_at_most_doubles_or_adds_four_pods() -> None:
    assert hpa().desired(look(load=1000)) == 20
    assert hpa().desired(look(ready=2, load=1000)) == 6


def test_hpa_shrinks_to_the_highest_recommendation_of_five_minutes() -> None:
    policy = hpa()
    assert policy.desired(look(0, load=100)) == 10
    assert policy.desired(look(15, load=50)) == 10
    assert policy.desired(look(300, load=20)) == 10
    assert policy.desired(look(301, load=20)) == 5  # the 10 of second 0 has left the window, the 5 has not
    assert policy.desired(look(601, ready=5, load=10)) == 2


def test_hpa_counts_starting_pods_as_idle_when_it_grows() -> None:
    assert hpa().desired(look(ready=10, starting=10, load=150)) == 20
    assert hpa().desired(look(ready=10, starting=2, load=150)) == 15


def test_an_external_average_divides_the_total() -> None:
    policy = Hpa(lambda seen: seen.waiting, 10.0, is_external=True)
    assert policy.desired(look(load=35)) == 10  # the total asks for 4, the window keeps the current 10
    policy = Hpa(lambda seen: seen.waiting, 10.0, is_external=True)
    assert policy.desired(look(ready=2, load=35)) == 4


# -- traffic


def test_a_day_is_reproducible_and_near_its_profile() -> None:
    traffic = DayTraffic(tuple(float(hour) for hour in range(24)), spikes_per_day=0, level_sigma=0.0)
    arrivals = traffic.arrivals(TICK)
    assert arrivals == traffic.arrivals(TICK) != replace(traffic, seed=1).arrivals(TICK)
    assert sum(arrivals) == pytest.approx(sum(range(24)) * 3600, rel=0.01)
    assert len(moments(arrivals[-100:], TICK)) == sum(arrivals[-100:])


def test_an_impossible_day_is_refused() -> None:
    with pytest.raises(ConfigError, match="24 rates"):
        DayTraffic((1.0,) * 23)


def test_a_line_continues_a_ramp() -> None:
    line = Line(100.0)
    for now in range(0, 200, 10):
        line.add(now, 2.0 * now)
    assert line.at(300.0) == pytest.approx(600.0)


# -- the fluid


def test_a_fluid_at_constant_load_is_the_steady_state() -> None:
    costs = costs_of(SHORT)
    rate = 0.5 * costs.most
    fleet = FluidFleet(costs, hpa(min_replicas=10, max_replicas=10), 60.0, 1.0, 1.0, 10)
    waiting = running = 0.0
    for _ in range(200):
        waiting, running, step, _ = fleet._advance(10, waiting, running, round(10 * rate * TICK), TICK)
    state = Replica(SHORT, costs.limit).at(rate)
    assert waiting == 0
    assert step == pytest.approx(state.step, rel=0.1)
    assert running / 10 == pytest.approx(state.running, rel=0.15)


def test_the_fluid_agrees_with_the_exact_fleet_on_a_growing_load() -> None:
    """Violations within 6 points, replica hours within 6 %, for a load that doubles and a policy that follows."""
    costs, ttft, tpot = costs_of(SHORT), 1.0, 0.1
    # 1.4: well below the load at which chance alone makes the exact fleet start a fourth replica early
    rates = [costs.most * (1.4 if tick < 24 else 3.2) for tick in range(72)]
    arrivals = [round(rate * TICK) for rate in rates]

    def policy() -> Hpa:
        return Hpa(lambda seen: seen.unfinished, 6.0, 2, 8)

    fluid = FluidFleet(costs, policy(), 40.0, ttft, tpot, 3).run(arrivals)
    work = [SimRequest(i, when, SHORT.prompt, SHORT.output) for i, when in enumerate(moments(arrivals, TICK))]
    plan = plan_memory(SHORT.deployment)
    fleet = Fleet(
        lambda: make_engine(SHORT.deployment, plan=plan, enable_prefix_caching=False),
        3,
        make_router("least-loaded"),
        policy=policy(),
        cold_start=40.0,
    )
    report = fleet.run(work)
    records = [record for replica in fleet.replicas for record in replica.engine.recorder.finished]
    late = sum(record.ttft > ttft or record.tpot > tpot for record in records) / len(records)
    assert fluid.violated == pytest.approx(late, abs=0.06)
    assert fluid.replica_seconds == pytest.approx(report.replica_seconds, rel=0.06)


# -- the comparison


def test_the_engines_autoscaler_beats_hpa_on_the_queue_at_no_higher_cost() -> None:
    """A day of 24 hours in 30 replicas, three seeds: fewer violations in sum, and not more replica hours."""
    costs = costs_of(SHORT)
    hours = tuple(12 + 9.0 * (1 if 10 <= hour < 20 else -0.7) for hour in range(24))
    scale = 30 * 0.7 * costs.most / max(hours)
    traffic = DayTraffic(tuple(scale * hour for hour in hours))
    service = Service(costs, 0.7 * costs.most, 2.0, 0.1, 100.0, traffic)
    chosen = [
        replace(contender, choices=contender.choices[:1])
        for contender in CONTENDERS
        if contender.name in ("asymmetric", "HPA queue")
    ]
    found = race(service, 3, num_tuning=1, contenders=chosen)
    ours, queue = found.results
    assert ours.meets_budget
    assert ours.mean(lambda r: r.violated) < queue.mean(lambda r: r.violated)
    assert ours.mean(lambda r: r.replica_hours) <= 1.02 * queue.mean(lambda r: r.replica_hours)
    assert ours.mean(lambda r: r.thrash) < queue.mean(lambda r: r.thrash)
    rivals = dict(found.rivals)
    assert HIGHER in rivals and all(each.name == "HPA queue" for each in rivals.values())
    for role, rival in rivals.items():
        assert len(rival.reports) == 3, "on the same days"
        dearer = rival.setting.hours > ours.setting.hours
        assert dearer == (role != LOWER), "on the tuning days"
        if role != AS_GOOD:
            assert all(a.violated < b.violated for a, b in zip(ours.reports, rival.reports, strict=True))
    assert verdict(ours, rivals).startswith("asymmetric is better than HPA queue: ")


@pytest.mark.parametrize(
    ("others", "roles"),
    [
        ([(90, 0.5), (80, 0.6), (95, 0.9)], {LOWER: 90}),
        ([(90, 0.5), (110, 0.4), (120, 0.1), (130, 0.05)], {LOWER: 90, HIGHER: 110, AS_GOOD: 120}),
        ([(110, 0.6), (105, 0.6), (108, 0.7)], {HIGHER: 105}),
        ([(100, 0.05), (120, 0.01)], {LOWER: 100, HIGHER: 120}),
    ],
)
def test_only_settings_that_no_cheaper_and_better_one_beats_are_compared(
    others: list[tuple[float, float]], roles: dict[str, float]
) -> None:
    tried = [Tried(hours, violated, 0.0, 0.0) for hours, violated in others]
    found = around(tried, Tried(100, 0.1, 0.0, 0.0))
    assert {role: each.hours for role, each in found.items()} == roles


@pytest.mark.parametrize(
    ("rivals", "words"),
    [
        ({LOWER: (0.9, 0.1)}, "HPA is better: at 0.90 times the cost it misses no more"),
        (
            {LOWER: (0.9, 0.3), HIGHER: (1.1, 0.1)},
            "HPA and ours trade cost for misses: with less cost it misses more, "
            "at 1.10 times the cost it misses more in 0 of 2 seeds",
        ),
        (
            {HIGHER: (1.1, 0.3), AS_GOOD: (2.0, 0.2)},
            "ours is better than HPA: no setting costs as little, at 1.10 times the cost it misses more in "
            "2 of 2 seeds, as few misses on the tuning days cost 2.00 times as much",
        ),
        (
            {LOWER: (0.9, 0.3), HIGHER: (1.1, 0.3)},
            "ours is better than HPA: with less cost it misses more, at 1.10 times the cost it misses more in "
            "2 of 2 seeds, no setting misses as little",
        ),
    ],
)
def test_a_verdict_follows_from_the_settings_next_to_ours(
    rivals: dict[str, tuple[float, float]], words: str
) -> None:
    def result(name: str, hours: float, violated: float) -> Result:
        day = SimpleNamespace(violated=violated, replica_hours=hours)
        return Result(name, "", Tried(hours, violated, 0, 0), True, [], [day, day])

    assert (
        verdict(result("ours", 1.0, 0.2), {role: result("HPA", *each) for role, each in rivals.items()})
        == words
    )
