"""Random workloads against the shadow KV. See shadow_kv.py for what a pass means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from engine.config import CacheConfig, SchedulerConfig
from tests.core import workloads
from tests.core.shadow_kv import Simulation, Summary, explain, run
from tests.core.workloads import Ask, Workload
from tests.seeds import seeds

CHUNK = 250
"""Workloads of one test: enough to reach every corner."""


def check(first: int, count: int, make: Callable[[int], Workload] = Workload.random) -> Summary:
    """Run workloads of this run's seeds and return their sum. Fails with the smallest workload that breaks the core."""
    total = Summary()
    for seed in seeds(count, first):
        workload = make(seed)
        try:
            summary = run(workload)
        except Exception:
            pytest.fail(f"workload {seed} breaks the core.\n\n{explain(workload)}", pytrace=False)
        for figure in fields(Summary):
            setattr(total, figure.name, getattr(total, figure.name) + getattr(summary, figure.name))
    return total


@pytest.mark.parametrize(
    "first",
    [*range(0, 1000, CHUNK), *(pytest.param(n, marks=pytest.mark.slow) for n in range(1000, 3000, CHUNK))],
)
def test_any_workload_reads_only_its_own_kv_and_gives_what_each_request_gives_alone(first: int) -> None:
    total = check(first, CHUNK)
    assert min(total.preemptions, total.hit_tokens, total.evictions, total.copied_out) > 50
    assert (
        min(total.copied_in, total.accepted_drafts, total.rejected_drafts, total.aborted, total.refused) > 20
    )
    assert len(total.reasons) == 9, "a reason never occurs"


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (150, 300))])
def test_two_rows_that_swap_in_four_blocks_give_what_each_request_gives_alone(first: int) -> None:
    total = check(first, 150, Workload.tight)
    assert (
        min(total.preemptions, total.copied_out, total.copied_in, total.aborted, total.accepted_drafts) > 20
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
