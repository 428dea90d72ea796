"""Random workloads against the shadow KV. See shadow_kv.py for what a pass means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields

import pytest

from engine.config import CacheConfig, SchedulerConfig
from tests.core import workloads
from tests.core.shadow_kv import Simulation, Summary, explain, failure, run
from tests.core.workloads import Ask, Workload

WORKLOADS = 2000
CHUNK = 250
CHUNKS = range(0, WORKLOADS, CHUNK)


def check(first: int, count: int, make: Callable[[int], Workload] = Workload.random) -> None:
    for seed in range(first, first + count):
        workload = make(seed)
        if failure(workload) is not None:
            pytest.fail(f"workload {seed} breaks the core.\n\n{explain(workload)}", pytrace=False)


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.slow if first >= WORKLOADS // 2 else []) for first in CHUNKS],
)
def test_any_workload_reads_only_its_own_kv_and_gives_what_each_request_gives_alone(first: int) -> None:
    check(first, CHUNK)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(150, 1950, 300))]
)
def test_two_rows_that_swap_in_four_blocks_give_what_each_request_gives_alone(first: int) -> None:
    check(first, 300 if first else 150, Workload.tight)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(WORKLOADS, 10_000, 2000))
def test_many_more_workloads(first: int) -> None:
    check(first, 2000)


def total_of(workloads: Iterable[Workload]) -> Summary:
    total = Summary()
    for workload in workloads:
        summary = run(workload)
        for figure in fields(Summary):
            setattr(total, figure.name, getattr(total, figure.name) + getattr(summary, figure.name))
    return total


def test_the_workloads_reach_the_corners_they_are_for() -> None:
    total = total_of(Workload.random(seed) for seed in range(150))
    assert min(total.preemptions, total.hit_tokens, total.evictions, total.copied_out, total.copied_in) > 50
    assert min(total.accepted_drafts, total.rejected_drafts, total.aborted, total.refused) > 20
    assert len(total.reasons) == 9, "a reason never occurs"
    tight = total_of(Workload.tight(seed) for seed in range(100))
    assert (
        min(tight.preemptions, tight.copied_out, tight.copied_in, tight.aborted, tight.accepted_drafts) > 20
    )


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
