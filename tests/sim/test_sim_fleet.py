"""Routers, pools and the autoscaler: exact rules, and expected trends under traffic."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from engine.config import ConfigError
from engine.sim.autoscaler import Autoscaler, AutoscalerConfig, ScaleEvent, Schedule, count_thrash
from engine.sim.disaggregation import DisaggregatedFleet, place_blocks
from engine.sim.fleet import Fleet, FleetReport
from engine.sim.hardware import Link, get_hardware, get_link
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.router import ROUTERS, ConsistentHash, make_router
from engine.sim.run import make_engine, simulate
from engine.sim.workload import Lengths, SimRequest, Workload, make_request, parse_phases

DEPLOYMENT = Deployment(get_model("llama-3-8b"), get_hardware("h100"))
SCALING = AutoscalerConfig(
    "load",
    out_above=10,
    in_below=2,
    sustain_out=20,
    sustain_in=30,
    cooldown_out=60,
    cooldown_in=300,
    interval=10,
)


def engine_with(num_blocks: int = 3000):
    return lambda: make_engine(DEPLOYMENT, num_blocks=num_blocks)


def serve(router: str, work: object, replicas: int = 4, num_blocks: int = 3000) -> FleetReport:
    return Fleet(engine_with(num_blocks), replicas, make_router(router)).run(work)


SHARED = list(Workload(600, 30, Lengths(700, 700), Lengths(20, 60), num_prefixes=30, prefix_len=640, seed=2))


# -- routers


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_serves_everything_once(router: str) -> None:
    report = serve(router, SHARED[:200])
    assert report.run.num_finished == 200 == sum(replica.num_requests for replica in report.replicas)
    assert report.run.output_tokens == sum(request.output_len for request in SHARED[:200])


def test_a_fleet_of_one_is_a_replica() -> None:
    alone = simulate(engine_with()(), SHARED[:200])
    for router in ROUTERS:
        assert serve(router, SHARED[:200], replicas=1).run == alone


def test_round_robin_deals_in_turn() -> None:
    assert serve("round-robin", SHARED).balance == 1.0


@pytest.mark.slow
def test_affinity_hits_more_and_balances_less_than_taking_turns() -> None:
    """E47: with too little cache for every prefix everywhere."""
    by_router = {name: serve(name, SHARED, num_blocks=600) for name in ROUTERS}
    hits = {name: report.run.prefix_cache_hit_rate for name, report in by_router.items()}
    assert hits["prefix-affinity"] > hits["round-robin"] + 0.2
    assert hits["consistent-hash"] > hits["round-robin"] + 0.2
    assert by_router["consistent-hash"].balance > by_router["bounded-load"].balance >= 1
    assert by_router["round-robin"].run.ttft.mean > by_router["prefix-affinity"].run.ttft.mean


def test_least_loaded_beats_turns_when_some_requests_are_huge() -> None:
    work = [SimRequest(i, 0.05 * i, 4000 if i % 4 == 0 else 50, 200 if i % 4 == 0 else 5) for i in range(200)]
    turns, least, tokens = (serve(name, work) for name in ("round-robin", "least-loaded", "token-aware"))
    assert least.run.ttft.p90 < turns.run.ttft.p90
    assert tokens.run.ttft.p90 < turns.run.ttft.p90


def test_a_replica_that_leaves_the_ring_moves_only_its_own_keys() -> None:
    fleet = Fleet(engine_with(), 4, make_router("consistent-hash"))
    ring = ConsistentHash()
    requests = [SimRequest(i, 0.0, 1, 1, prefix_id=i) for i in range(300)]

    def owners(members: list[int]) -> list[int]:
        ready = [fleet.replicas[index] for index in members]
        return [ring.choose(request, make_request(request), ready).index for request in requests]

    before, after = owners([0, 1, 2, 3]), owners([0, 1, 3])
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {2} and moved.count(2) == before.count(2)


def test_bounded_load_never_exceeds_its_factor() -> None:
    fleet = Fleet(engine_with(), 4, make_router("bounded-load"))
    total = 0
    for index in range(100):  # all at one moment and for the same key: the ring alone would pile them up
        fleet._route(SimRequest(index, 0.0, 100, 50, prefix_id=7, prefix_len=64))
        total += 1
        loads = [replica.engine.num_unfinished for replica in fleet.replicas]
        assert sum(loads) == total
        assert max(loads) <= -(-total * 5 // 16) + 1


def test_an_unknown_router_is_named_with_the_others() -> None:
    with pytest.raises(ConfigError, match="did you mean 'least-loaded'"):
        make_router("least-load")


# -- autoscaler: the rule


def decisions(config: AutoscalerConfig, signal: list[float]) -> list[int]:
    """Return the scaling decisions at 10, 20, ... seconds; replicas follow at once."""
    scaler, replicas, made = Autoscaler(config), 2, []
    for index, value in enumerate(signal):
        made.append(scaler.decide(10.0 * (index + 1), value, replicas))
        replicas += made[-1]
    return made


def test_a_peak_must_last_before_a_replica_is_added() -> None:
    assert decisions(SCALING, [11, 11, 5, 11, 11, 11]) == [0, 0, 0, 0, 0, 1]


def test_after_growing_the_next_one_waits_for_the_cooldown() -> None:
    made = decisions(SCALING, [11.0] * 12)
    assert [index for index, change in enumerate(made) if change] == [
        2,
        8,
    ]  # at 30 s and, 60 s later, at 90 s


def test_shrinking_waits_for_its_own_longer_cooldown() -> None:
    made = decisions(SCALING, [11.0] * 3 + [0.0] * 40)
    assert [(10 * (index + 1), change) for index, change in enumerate(made) if change] == [(30, 1), (330, -1)]


def test_between_the_thresholds_nothing_happens() -> None:
    assert not any(decisions(SCALING, [5.0] * 50))


def test_never_below_the_minimum_nor_above_the_maximum() -> None:
    config = replace(SCALING, min_replicas=2, max_replicas=3, cooldown_out=0, cooldown_in=0)
    assert sum(decisions(config, [99.0] * 50)) == 1
    assert sum(decisions(config, [0.0] * 50)) == 0


def test_a_schedule_raises_the_minimum_ahead_of_the_load() -> None:
    config = replace(SCALING, schedules=(Schedule(100, 200, 4),), cooldown_in=0)
    scaler = Autoscaler(config)
    assert [scaler.decide(now, 5.0, 2) for now in (90.0, 100.0, 200.0)] == [0, 1, 0]


def test_overload_that_cannot_be_answered_is_counted() -> None:
    scaler = Autoscaler(replace(SCALING, max_replicas=2))
    for index in range(10):
        scaler.decide(10.0 * (index + 1), 11.0, 2)
    assert scaler.overload_seconds == 80  # above since 10 s, held for 20 s from 30 s on: eight looks of 10 s


def test_thrash_is_a_change_undone_soon() -> None:
    events = [
        ScaleEvent(t, kind, 0, 0, 0) for t, kind in ((0, "out"), (100, "in"), (2000, "out"), (2100, "out"))
    ]
    assert count_thrash(events) == 1


@pytest.mark.parametrize(
    "change",
    [{"signal": "cpu"}, {"in_below": 10.0}, {"min_replicas": -1}, {"cooldown_in": -1.0}, {"interval": 0.0}],
)
def test_rules_that_cannot_work_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(SCALING, **change)


# -- autoscaler: in a fleet

WAVE = list(
    Workload(
        5000, 1, Lengths(100, 100), Lengths(20, 20), "constant", phases=parse_phases("120:18,120:2"), seed=1
    )
)


@pytest.mark.slow
def test_asymmetric_cooldowns_stop_the_thrash_of_a_swinging_load() -> None:
    """E50: a square wave, fast to grow in both cases, fast or slow to shrink."""
    base = AutoscalerConfig("rate", 6, 3, 1, 4, 20, 20, 30, 20, cold_start=20, interval=10)
    hasty = Fleet(engine_with(), 1, make_router("least-loaded"), base).run(WAVE)
    patient = Fleet(engine_with(), 1, make_router("least-loaded"), replace(base, cooldown_in=600)).run(WAVE)
    assert hasty.thrash > patient.thrash
    assert hasty.replica_seconds < patient.replica_seconds
    assert hasty.run.num_finished == patient.run.num_finished == len(WAVE)


@pytest.mark.slow
def test_the_warm_pool_reacts_sooner() -> None:
    base = AutoscalerConfig("rate", 6, 3, 1, 4, 20, 30, 30, 600, cold_start=60, warm_start=5, interval=5)
    cold = Fleet(engine_with(), 1, make_router("least-loaded"), base).run(WAVE)
    warm = Fleet(engine_with(), 1, make_router("least-loaded"), replace(base, warm_pool=3)).run(WAVE)
    assert cold.reaction_seconds == 60
    assert warm.reaction_seconds == 5


def test_a_drained_replica_ends_its_requests_before_it_stops() -> None:
    base = AutoscalerConfig("rate", 50, 5, 1, 4, 20, 10, 30, 10, interval=10)
    work = list(Workload(300, 4, Lengths(100, 100), Lengths(1500, 1500), seed=4))
    report = Fleet(engine_with(), 3, make_router("round-robin"), base).run(work)
    drained = {event.replica: event.time for event in report.events if event.kind == "in"}
    stopped = {event.replica: event.time for event in report.events if event.kind == "stopped"}
    assert drained and all(
        stopped[replica] > time + 5 for replica, time in drained.items() if replica in stopped
    )
    assert report.run.output_tokens == 300 * 1500


# -- prefill and decode apart


def pools(link: Link, prefill: int = 1, decode: int = 1) -> DisaggregatedFleet:
    least = "least-loaded"
    return DisaggregatedFleet(
        engine_with(), engine_with(), prefill, decode, make_router(least), make_router(least), link
    )


def test_disaggregated_requests_produce_every_token_once() -> None:
    work = list(Workload(150, 8, Lengths(100, 1500), Lengths(1, 80), seed=9))
    report = pools(get_link("ib-ndr"), 2, 2).run(work)
    assert report.run.num_finished == 150
    assert report.run.output_tokens == sum(request.output_len for request in work)
    assert report.transfers == sum(request.output_len > 1 for request in work)
    assert report.run.itl is not None and report.run.itl.count == report.run.output_tokens - 150


def test_the_bytes_sent_are_the_kv_of_the_prompts() -> None:
    work = [SimRequest(0, 0.0, 1000, 10), SimRequest(1, 5.0, 300, 10)]
    assert pools(get_link("ib-ndr")).run(work).transfer_bytes == 1300 * 131_072


def test_the_decode_pool_computes_only_the_rest_of_the_last_block() -> None:
    report = pools(get_link("ib-ndr"))
    report.run([SimRequest(0, 0.0, 1000, 10)])
    decode = report.decode[0].engine.recorder
    assert decode.num_prefill_tokens == 1000 + 1 - 62 * 16  # 62 full blocks came over the link
    assert report.prefill[0].engine.recorder.num_generated_tokens == 1


def test_long_prompts_disturb_decodes_less_when_apart_and_a_slow_link_costs_the_second_token() -> None:
    """E45's sign: two GPUs either way."""
    work = list(Workload(200, 5, Lengths(4000, 4000), Lengths(60, 60), seed=3))
    together = Fleet(engine_with(20_000), 2, make_router("least-loaded")).run(work).run
    fleet = {
        name: DisaggregatedFleet(
            engine_with(20_000),
            engine_with(20_000),
            1,
            1,
            make_router("round-robin"),
            make_router("round-robin"),
            get_link(name),
        ).run(work)
        for name in ("nvlink4", "ethernet-100g")
    }
    assert fleet["nvlink4"].run.itl.p99 < together.itl.p99
    assert fleet["ethernet-100g"].mean_transfer_seconds > 10 * fleet["nvlink4"].mean_transfer_seconds
    assert fleet["ethernet-100g"].run.itl.max > fleet["nvlink4"].run.itl.max


def test_kv_that_does_not_fit_is_computed_again() -> None:
    kv = make_engine(DEPLOYMENT, num_blocks=11).scheduler.kv
    core = make_request(SimRequest(0, 0.0, 1000, 5))
    assert place_blocks(kv, core, 1000) == 10
    assert len(kv.match(core).device) == 10
    assert kv.pool.check_integrity() == []


def test_no_replica_is_enough_for_the_rule_but_not_for_a_simulated_fleet() -> None:
    rule = replace(SCALING, min_replicas=0)
    assert Autoscaler(rule).decide(0.0, 0.0, 0) == 0
    assert Autoscaler(rule).decide(0.0, 0.1, 0) == 1, "requests wait"
    with pytest.raises(ConfigError, match="holds no requests"):
        Fleet(engine_with(), 1, make_router("round-robin"), rule)


def test_two_choices_advances_only_what_it_looks_at_and_stays_even() -> None:
    """The less loaded of two: more even than dealing at random, without a look at the other replicas."""

    class AtRandom:
        needs_state = False

        def __init__(self) -> None:
            self.rng = Random(0)

        def choose(self, request: Any, core: Any, ready: Any) -> Any:
            return ready[self.rng.randrange(len(ready))]

    work = list(Workload(600, 60.0, Lengths(500, 900), Lengths(40, 120), seed=3))
    fleet = Fleet(engine_with(), 12, make_router("two-choices"))
    engines = [replica.engine for replica in fleet.replicas]
    fleet.choose(work[0], make_request(work[0]))
    late = replace(work[1], arrival=5.0)
    for engine in engines:
        engine.add(replace(work[2], arrival=0.0), 0.0)
    fleet.choose(late, make_request(late))
    assert sum(engine.now > 0 for engine in engines) == 2
    balance = {}
    for name, router in (("two", make_router("two-choices")), ("random", AtRandom())):
        report = Fleet(engine_with(), 12, router).run(work)
        assert report.run.num_finished == 600
        balance[name] = report.balance
    assert balance["two"] < balance["random"]
