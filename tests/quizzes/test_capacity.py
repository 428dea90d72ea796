"""Capacity questions and experiments against published sizes and simulated statistics."""

from __future__ import annotations

from random import Random

import pytest

from engine.sim.models import MODELS
from quizzes.experiments.capacity.memory import tensor_shapes
from quizzes.experiments.registry import BadArguments
from quizzes.experiments.running import run_here
from quizzes.oracles import capacity as oracle
from tests.quizzes.runs import runner

DENSE = [name for name, shape in MODELS.items() if shape.moe is None and shape.mla is None]

run = runner("capacity")


@pytest.mark.parametrize("name", DENSE)
def test_tensors_of_a_checkpoint_add_up_to_the_model(name: str) -> None:
    total = 0
    for shape in tensor_shapes(MODELS[name]).values():
        count = 1
        for size in shape:
            count *= size
        total += count
    assert total == MODELS[name].num_params


def test_an_8b_awq_checkpoint_has_the_size_of_the_published_one() -> None:
    """Public AWQ checkpoints of Llama-3-8B, groups of 128: 5.73 GB."""
    assert run("quantised_size", model="llama-3-8b", method="awq").total_gb == pytest.approx(5.73, abs=0.01)


def test_a_mixture_of_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="not a dense model"):
        run("quantised_size", model="mixtral-8x7b")


def test_a_plan_that_does_not_fit_is_a_result() -> None:
    plan = run("plan", model="llama-3-70b", gpu="l4")
    assert not plan.fits and plan.kv_budget_gib < 0 and plan.kv_tokens == 0


def test_a_lower_utilisation_only_takes_from_the_cache() -> None:
    change = run("plan_change", utilisation=0.92, to_utilisation=0.8)
    assert change.kv_tokens_after < change.kv_tokens_before
    assert change.budget_before_gib - change.budget_after_gib == pytest.approx(0.12 * 81_559 / 1024)


def test_tokens_within_a_limit_are_the_most_that_meet_it() -> None:
    budget = run("slo_tokens")
    assert run("slo_tokens", answer=budget.tokens).meets
    assert not run("slo_tokens", answer=budget.tokens + 1).meets


def test_a_gate_passes_with_the_cases_that_it_needs_and_not_with_fewer() -> None:
    needed = run("pass_rate", gate=0.99).cases_needed
    assert run("pass_rate", cases=needed, right=needed, gate=0.99).verdict == "pass"
    assert run("pass_rate", cases=needed - 1, right=needed - 1, gate=0.99).verdict == "inconclusive"


def test_a_canary_of_the_size_asked_for_sees_the_difference_four_times_in_five() -> None:
    base, bad, rng = 0.05, 0.1, Random(7)
    needed = run("canary_size", base=base, bad=bad).needed
    assert needed == oracle.per_arm(base, bad)
    seen = 0
    for _ in range(400):
        a, b = (sum(rng.random() < share for _ in range(needed)) / needed for share in (base, bad))
        mean = (a + b) / 2
        seen += abs(b - a) > oracle.Z * (2 * mean * (1 - mean) / needed) ** 0.5
    assert 0.73 < seen / 400 < 0.87


def test_pairs_need_fewer_questions_than_two_samples() -> None:
    paired = run("paired_eval")
    assert paired.paired_width < paired.unpaired_width


def test_the_whole_bill_saves_less_than_the_headline() -> None:
    split = run("cost_split", people=5000.0)
    assert split.hybrid_saving < split.headline_saving
    assert split.hybrid_total == pytest.approx(oracle.hybrid_bill(9200, 28000, 0.85, 5000))


def test_a_fleet_is_linear_in_what_reaches_the_model() -> None:
    assert run("tiers", cached=0.0, to_small=0.0, times=10.0).growth == pytest.approx(10)


@pytest.mark.parametrize("adapter", ["ja", "support"])
def test_slots_are_as_large_before_as_after_loading(adapter: str) -> None:
    slots = run("lora_slots", max_loras=2, max_lora_rank=32, adapter=adapter)
    assert slots.slot_bytes == slots.after_loading == oracle.slot_bytes(2, 32)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("pass_rate", {"cases": 5, "right": 6}, "6 right of 5"),
        ("paired_eval", {"cases": 10, "reference_right": 9, "won": 2, "lost": 1}, "do not fit"),
        ("canary_size", {"base": 0.02, "bad": 0.02}, "nothing to tell apart"),
    ],
)
def test_impossible_figures_are_refused(name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(name, **args)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("capacity.plan", {"model": "llama-3-9b"}, "did you mean 'llama-3-8b'"),
        ("memory.model_kv", {"model": "qwen2.5-7b", "tp": 8}, "does not divide the 28 heads"),
        ("capacity.fleet_size", {"model": "llama-3-70b", "gpu": "l4"}, "does not fit on l4"),
    ],
)
def test_settings_that_the_engine_refuses_are_argument_errors(
    name: str, args: dict[str, object], message: str
) -> None:
    with pytest.raises(BadArguments, match=message):
        run_here(name, args)
