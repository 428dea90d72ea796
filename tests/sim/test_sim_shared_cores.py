"""Replicas that share cores: alone they are a fleet as any, together they slow each other down as measured."""

from __future__ import annotations

import pytest

from engine.config import CacheConfig
from engine.sim.cost import Rates
from engine.sim.engine import SimEngine
from engine.sim.fleet import Fleet, FleetReport
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.router import make_router
from engine.sim.run import scheduler_config
from engine.sim.shared_cores import Change, Cores, SharedCost, SharedFleet, Slowdown
from engine.sim.workload import Lengths, SimRequest, Workload

DEPLOYMENT = Deployment(get_model("dummy-103m"), get_hardware("a10g"), max_model_len=512)
WORK = list(Workload(60, 10.0, Lengths(40, 80), Lengths(8, 24)))
ONE_EACH = [SimRequest(index, 0.0, 64, 32) for index in range(3)]


def engine(cores: Cores) -> SimEngine:
    rates = Rates.of(DEPLOYMENT.hardware, "bfloat16")
    cost = SharedCost(DEPLOYMENT, rates, cores)
    return SimEngine(scheduler_config(DEPLOYMENT), CacheConfig(513, 16, enable_prefix_caching=True), cost)


def serve(
    slowdown: list[float], replicas: int, work: list[SimRequest], changes: tuple[Change, ...] = ()
) -> FleetReport:
    cores = Cores([Slowdown(factor, factor) for factor in slowdown])
    fleet = SharedFleet(lambda: engine(cores), replicas, make_router("round-robin"), cores)
    return fleet.serve(work, changes)


def test_without_slowdown_it_is_a_fleet_as_any() -> None:
    cores = Cores([Slowdown()])
    plain = Fleet(lambda: engine(cores), 2, make_router("round-robin")).run(WORK)
    assert serve([1.0], 2, WORK).run == plain.run


@pytest.mark.parametrize("busy", [1, 2, 3])
def test_a_request_takes_as_much_longer_as_the_busy_replicas_say(busy: int) -> None:
    alone = serve([1.0], 1, ONE_EACH[:1]).run.e2e
    together = serve([1.0, 1.5, 2.5], busy, ONE_EACH[:busy]).run.e2e
    assert alone is not None and together is not None
    factor = (1.0, 1.5, 2.5)[busy - 1]
    assert together.mean == pytest.approx(factor * alone.mean, rel=0.1)


def test_prompts_and_decodes_slow_down_each_by_its_own_factor() -> None:
    def times(slowdown: Slowdown) -> tuple[float, float]:
        cores = Cores([slowdown])
        run = SharedFleet(lambda: engine(cores), 1, make_router("round-robin"), cores).serve(ONE_EACH[:1]).run
        assert run.ttft is not None and run.tpot is not None
        return run.ttft.mean, run.tpot.mean

    ttft, tpot = times(Slowdown())
    assert times(Slowdown(2.0, 3.0)) == pytest.approx((2 * ttft, 3 * tpot))


def test_idle_replicas_slow_nothing_down() -> None:
    assert serve([1.0, 9.0], 2, ONE_EACH[:1]).run.e2e == serve([1.0, 9.0], 1, ONE_EACH[:1]).run.e2e


def test_a_planned_change_starts_a_replica_that_costs_cores_before_it_serves() -> None:
    change = Change(2.0, 2, start_s=1.0)
    report = serve([1.0, 1.5], 1, WORK, (change,))
    assert [replica.started for replica in report.replicas] == [0.0, 2.0]
    assert report.run.num_finished == len(WORK)
    later = [each for each in WORK if each.arrival > 3.0]
    assert report.replicas[1].num_requests == pytest.approx(len(later) / 2, abs=1)
    drained = serve([1.0, 1.0], 2, WORK, (Change(2.0, 1),))
    assert drained.run.num_finished == len(WORK)
    assert sum(replica.num_requests for replica in drained.replicas) == len(WORK)
