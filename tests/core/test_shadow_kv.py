"""Random workloads against the shadow KV. See shadow_kv.py for what a pass means."""

from __future__ import annotations

from dataclasses import fields

import pytest

from engine.config import CacheConfig, SchedulerConfig
from tests.core import workloads
from tests.core.shadow_kv import Simulation, Summary, explain, failure, run
from tests.core.workloads import Ask, Workload

WORKLOADS = 2000
CHUNK = 250


def check(first: int, count: int) -> None:
    for seed in range(first, first + count):
        workload = Workload.random(seed)
        if failure(workload) is not None:
            pytest.fail(f"workload {seed} breaks the core.\n\n{explain(workload)}", pytrace=False)


@pytest.mark.parametrize("first", range(0, WORKLOADS, CHUNK))
def test_any_workload_reads_only_its_own_kv_and_gives_what_each_request_gives_alone(first: int) -> None:
    check(first, CHUNK)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(WORKLOADS, 40_000, 2000))
def test_many_more_workloads(first: int) -> None:
    check(first, 2000)


def test_the_workloads_reach_the_corners_they_are_for() -> None:
    total = Summary()
    for seed in range(150):
        summary = run(Workload.random(seed))
        for figure in fields(Summary):
            setattr(total, figure.name, getattr(total, figure.name) + getattr(summary, figure.name))
    assert min(total.preemptions, total.hit_tokens, total.evictions, total.copied_out, total.copied_in) > 50
    assert min(total.accepted_drafts, total.rejected_drafts, total.aborted, total.refused) > 20
    assert len(total.reasons) == 9, "a reason never occurs"


def test_a_cached_repeat_gives_the_tokens_of_the_first_request() -> None:
    prompt = list(range(16))
    asks = [Ask("first", 0, prompt, max_tokens=9), Ask("again", 12, prompt, max_tokens=9)]
    limits = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=100)
    simulation = Simulation(Workload(limits, CacheConfig(20, 4), asks))
    assert simulation.run().hit_tokens == 12
    first, again = simulation.received["first"], simulation.received["again"]
    assert first.token_ids == again.token_ids and len(first.token_ids) > 0


def test_a_workload_prints_as_the_call_that_makes_it_again() -> None:
    workload = Workload.random(3)
    assert eval(repr(workload), vars(workloads)) == workload
