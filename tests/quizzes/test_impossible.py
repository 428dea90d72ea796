"""No calculator prices silently what cannot exist: it refuses, or its result says so."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from engine.config import ConfigError
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment, divide_memory
from engine.sim.models import get_model
from engine.sim.run import make_engine
from quizzes.experiments import registry
from quizzes.experiments.registry import BadArguments
from quizzes.experiments.running import run_here

CARD = {
    name: card
    for name in registry.names()
    for card in ("hardware", "gpu")
    if {"model", card} <= registry.get(name).parameters.keys()
}
"""Experiment -> its argument that names the card, for those that put a model on one."""
TELLS = {
    "capacity.concurrency": lambda result: result["at_lengths"] == [0] * 3,
    "capacity.plan": lambda result: not result["fits"] and result["kv_budget_gib"] < 0,
    "capacity.plan_change": lambda result: result["budget_before_gib"] < 0,
    "capacity.quantised_size": lambda result: not result["fits_card"],
    "capacity.service": lambda result: not result["fits"] and "does not fit" in result["problem"],
    "lora.footprint": lambda result: result["devices_shared"] > 1,
}
"""Statement in the result of each experiment whose subject is whether it fits."""


@pytest.mark.parametrize("name", CARD)
def test_a_model_larger_than_its_card_is_refused_or_said_to_be(name: str) -> None:
    known = registry.get(name).parameters
    largest = "deepseek-v3" if name == "performance.moe_reads" else "llama-3.1-405b"
    model = (get_args(known["model"].annotation) or [largest])[-1]
    args: dict[str, Any] = {"model": model, CARD[name]: "l4"} | ({"tp": 1} if "tp" in known else {})
    if name in TELLS:
        assert TELLS[name](run_here(name, args))
        return
    with pytest.raises(BadArguments, match="does not fit"):
        run_here(name, args)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("performance.roofline", {"rows": 4000, "context": 8000}),
        ("performance.batch_scaling", {"batches": [1, 65_536]}),
        ("performance.launches", {"rows": 1024, "context": 100_000}),
        ("performance.precision_speedup", {"rows": 4000, "context": 8000}),
        ("performance.tokeniser_load", {"model": "llama-3.1-8b", "batch": 1024, "output": 4000}),
        ("scheduling.mixed_step", {"decodes": 512, "context": 32_000}),
        ("scheduling.prefill_interference", {"gpu": "a10g", "decodes": 64, "context": 4000}),
        ("scheduling.load_sweep", {"kv_blocks": 100_000}),
        ("capacity.kv_handoff", {"prompt": 1_000_000}),
        ("disaggregation.transfer", {"tp": 2, "prompt": 131_072}),
        ("preemption.swap_or_recompute", {"gpu": "a10g", "tokens": 131_072}),
        ("preemption.swap_under_load", {"gpu": "a10g", "num_blocks": 20_000}),
        ("speculation.speedup", {"batch": 512, "prompt": 8000}),
        ("parallelism.traffic", {"tokens": 65_536}),
        ("attention.chunked_cost", {"hardware": "a10g", "prompt": 200_000}),
        ("prefix_cache.prefill_saving", {"prompt": 32_000}),
    ],
)
def test_tokens_whose_kv_has_no_room_are_refused(name: str, args: dict[str, Any]) -> None:
    with pytest.raises(BadArguments, match="does not fit|KV blocks take"):
        run_here(name, args)


def test_the_largest_batch_is_the_last_one_that_is_not_refused() -> None:
    most = run_here("performance.batch_scaling", {"context": 4000, "batches": [1]})["largest"]
    run_here("performance.batch_scaling", {"context": 4000, "batches": [most]})
    with pytest.raises(BadArguments, match="does not fit"):
        run_here("performance.batch_scaling", {"context": 4000, "batches": [most + 1]})


def test_a_simulated_replica_has_no_more_blocks_than_its_card() -> None:
    replica = Deployment(get_model("llama-3.1-8b"), get_hardware("h100"))
    most = divide_memory(replica).num_blocks
    make_engine(replica, num_blocks=most)
    with pytest.raises(ConfigError, match=f"has room for {most:,}"):
        make_engine(replica, num_blocks=most + 1)


@pytest.mark.parametrize(("model", "tp"), [("qwen2.5-7b", 7), ("qwen3-14b", 5), ("qwen2.5-14b", 10)])
def test_ranks_that_would_share_a_kv_head_are_refused(model: str, tp: int) -> None:
    with pytest.raises(ConfigError, match="do not divide each other"):
        Deployment(get_model(model), get_hardware("h100"), tp=tp)
