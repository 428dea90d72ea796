"""Skipping steps leaves the report and the scheduler's state unchanged."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import CacheConfig, SchedulerConfig
from engine.sim.cost import CostModel
from engine.sim.engine import SimEngine
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.report import summarise
from engine.sim.workload import SimRequest

COSTS = {
    name: CostModel(Deployment(get_model(name), get_hardware("a10g")))
    for name in ("llama-3-8b", "mistral-7b", "shop")
}


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    """Small caches and close arrivals: preemptions, blocked heads, shared prefixes, full batches."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    num_blocks = draw(st.integers(6, 60))
    room = (num_blocks - 1) * block_size
    longest = min(room, 80)
    requests = []
    now = 0.0
    for index in range(draw(st.integers(1, 14))):
        prompt = draw(st.integers(1, max(1, longest // 2)))
        output = draw(st.integers(1, max(1, longest - prompt)))
        prefix = draw(st.integers(-1, 1))
        requests.append(
            SimRequest(index, now, prompt, output, prefix, draw(st.integers(1, 24)), draw(st.integers(0, 2)))
        )
        now += draw(st.sampled_from([0.0, 0.0, 0.01, 0.1, 1.0]))
    return {
        "scheduler": SchedulerConfig(
            max_num_batched_tokens=draw(st.sampled_from([2, 5, 16, 64])),
            max_num_seqs=draw(st.sampled_from([1, 2, 8])),
            max_model_len=200,
            policy=draw(st.sampled_from(["fcfs", "priority"])),
            long_prefill_token_threshold=draw(st.sampled_from([0, 3])),
        ),
        "cache": CacheConfig(
            num_blocks,
            block_size,
            enable_prefix_caching=draw(st.booleans()),
            sliding_window=draw(st.sampled_from([None, None, 7, 20])),
        ),
        "model": draw(st.sampled_from(sorted(COSTS))),
        "requests": requests,
    }


def state_of(engine: SimEngine) -> dict[str, Any]:
    """Return all state that a later step depends on."""
    scheduler = engine.scheduler
    pool = scheduler.kv.pool
    return {
        "now": engine.now,
        "running": [request_state(request) for request in scheduler.running],
        "waiting": [request_state(request) for request in scheduler.waiting],
        "free": [block.block_id for block in pool.free],
        "cached": {block_hash: block.block_id for block_hash, block in pool.cached.items()},
        "evictions": pool.num_evictions,
        "stats": asdict(scheduler.stats),
    }


def request_state(request: Any) -> tuple[Any, ...]:
    return (
        request.request_id,
        list(request.token_ids),
        request.num_computed_tokens,
        [block.block_id for block in request.blocks],
        list(request.block_hashes),
        request.num_published_blocks,
        request.status,
        request.in_flight_step,
        request.num_blocks_behind_window,
        request.events,
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(workloads(), st.lists(st.floats(0.001, 3.0), max_size=4))
def test_skipping_steps_leaves_the_state_and_the_report_as_they_would_be(
    work: dict[str, Any], stops: list[float]
) -> None:
    engines = [
        SimEngine(work["scheduler"], work["cache"], COSTS[work["model"]], fast_forward=fast)
        for fast in (True, False)
    ]
    stops = sorted({*stops, *(request.arrival for request in work["requests"])})
    for stop in [*stops, 1e9]:
        for engine in engines:
            engine.run_until(stop)
        assert state_of(engines[0]) == state_of(engines[1])
        for engine in engines:
            for request in work["requests"]:
                if request.arrival == stop:
                    engine.add(request, stop)
    reports = [
        summarise([engine.recorder], engine.scheduler.kv.pool.num_usable, engine.rejected)
        for engine in engines
    ]
    assert reports[0] == reports[1]
    engines[0].scheduler.check_integrity()


def test_most_steps_of_a_quiet_run_are_skipped() -> None:
    """Otherwise the equality above would prove nothing."""
    planned = 0

    class Counting(SimEngine):
        def _take_off(self) -> None:
            nonlocal planned
            planned += 1
            super()._take_off()

    engine = Counting(SchedulerConfig(64, 8, 200), CacheConfig(60, 16), COSTS["llama-3-8b"])
    engine.run([SimRequest(index, 20.0 * index, 30, 100) for index in range(5)])
    assert engine.recorder.num_steps == 5 * 100
    assert planned <= 5 * 2
