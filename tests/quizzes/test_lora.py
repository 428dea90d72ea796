"""LoRA experiments against arithmetic on shapes."""

from __future__ import annotations

from typing import Any

import pytest

from quizzes.experiments.context import Context
from quizzes.experiments.lora.counting import footprint, isolation, slots
from quizzes.experiments.lora.live import exactness
from quizzes.experiments.lora.prefetch import prefetch
from quizzes.experiments.lora.routing import adapter_routing
from quizzes.oracles import lora as oracle


@pytest.mark.parametrize("model", sorted(oracle.SHAPES))
def test_an_adapter_weighs_rank_times_the_edges_of_its_matrices(model: str) -> None:
    found = footprint(model=model, rank=8, modules=["q", "v", "down"])
    assert found.adapter_bytes == oracle.adapter_bytes(model, 8, ["q", "v", "down"])


def test_adapters_beyond_the_slots_wait_and_none_in_use_is_evicted() -> None:
    found = slots(Context(), max_loras=2, adapters=["a", "b", "c", "d"], output=5)
    assert found.steps == oracle.rounds(["a", "b", "c", "d"], 2, 5) == 10
    assert (found.loads, found.evictions, found.loads_while_in_use) == (4, 2, 0)
    roomy = slots(Context(), max_loras=4, adapters=["a", "b", "c", "d"], output=5)
    assert (roomy.waits, roomy.steps) == (0, 5)


def test_equal_prompts_share_kv_only_within_an_adapter() -> None:
    adapters = ["-", "a", "a", "-", "b"]
    found = isolation(Context(), adapters=adapters, prompt=90)
    assert found.cached_tokens == oracle.cached_by_adapter(adapters, 90, 16)
    assert found.kv_copies == 3


def test_mixed_ranks_are_exact_and_a_rank_too_large_is_refused() -> None:
    found = exactness(Context(), max_tokens=3)
    assert found.worst_difference < 1e-3 < found.truncated_difference
    assert found.too_large == "refused" and "32" in found.message
    assert exactness(Context(), max_tokens=1, too_large=16).too_large == "served"


def test_routing_by_adapter_loads_each_once_and_round_robin_again_and_again() -> None:
    adapters = list("abcde") * 4
    found = adapter_routing(Context(), replicas=3, max_loras=2, adapters=adapters)
    assert found.loads_round_robin == oracle.loads_in_turn(adapters, 3, 2) == 20
    assert found.loads_affine == found.distinct == 5
    crowded = adapter_routing(Context(), replicas=3, max_loras=2, adapters=adapters, output=9)
    assert crowded.loads_affine < crowded.loads_round_robin
    assert crowded.waits_affine < crowded.waits_round_robin


def test_reading_ahead_leaves_no_folder_to_read_in_a_step_and_changes_no_schedule() -> None:
    def run(depth: int) -> Any:
        names = ["a", "b", "c", "d", "e"]
        return slots(Context(), max_loras=1, adapters=names, output=5, max_cpu_loras=2, prefetch=depth)

    without, ahead = run(0), run(2)
    assert (without.reads, without.prefetches) == (5, 0)
    assert (ahead.reads, ahead.prefetches) == (1, 4), "nothing runs before the first request"
    same = ("loads", "evictions", "waits", "first_token", "finished", "loaded_order")
    assert all(getattr(without, name) == getattr(ahead, name) for name in same)


@pytest.mark.slow
def test_the_measured_engine_reads_ahead_too() -> None:
    found = prefetch(Context(), rank=8, adapters=3, tokens=8, seconds=1)
    assert (found.reads, found.reads_ahead) == (3, 1) and found.same_tokens
    assert found.lo <= found.ratio <= found.hi
