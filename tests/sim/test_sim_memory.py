"""Memory plans: sizes that fit, and the errors for those that do not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from engine.config import ConfigError
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment, DoesNotFit, plan_memory, remedies
from engine.sim.models import get_model
from prep_common.text import GIB


def deployment(model: str = "llama-3-8b", gpu: str = "h100", **more: object) -> Deployment:
    return Deployment(get_model(model), get_hardware(gpu), **more)


def test_the_parts_of_the_memory_add_up() -> None:
    plan = plan_memory(deployment())
    assert plan.weights + plan.runtime + plan.activations + plan.kv_budget == pytest.approx(plan.usable)
    assert plan.weights == 2 * 8_030_261_248
    assert 0 <= plan.kv_budget - plan.num_blocks * 16 * 131_072 < 16 * 131_072
    assert plan.num_tokens == (plan.num_blocks - 1) * 16  # block 0 holds nothing


def test_llama_3_70b_on_eight_h100s_leaves_about_440_gib_for_kv() -> None:
    """8 x (79.6 GiB x 0.92 - 16.4 GiB of weights - about 2.5): the sum that interviews ask for."""
    plan = plan_memory(deployment("llama-3-70b", tp=8))
    assert 8 * plan.kv_budget / GIB == pytest.approx(443, rel=0.01)
    assert plan.num_tokens == pytest.approx(8 * plan.kv_budget / (320 * 1024), rel=0.001)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "bfloat16", "fp8", "int8_per_token_head"])
def test_the_engines_pool_has_the_bytes_that_the_calculator_says(kv_cache_dtype: str) -> None:
    from engine.config import EngineArgs
    from engine.engine_core import EngineCore

    args = EngineArgs(
        model="shop",
        dtype="float32",
        num_gpu_blocks_override=11,
        block_size=8,
        device="cpu",
        kv_cache_dtype=kv_cache_dtype,
    )
    core = EngineCore.from_args(args)
    try:
        pool = core.executor.worker.runner.kv_cache.blocks
        planned = deployment(
            "shop", "cpu", dtype="float32", block_size=8, max_model_len=2048, kv_cache_dtype=kv_cache_dtype
        )
        assert pool.nbytes == 11 * 8 * planned.kv_bytes_per_token
    finally:
        core.shutdown()


def test_kv_in_8_bits_holds_twice_the_tokens_less_what_scales_take() -> None:
    wide, fp8, int8 = (
        plan_memory(deployment(kv_cache_dtype=name)) for name in ("auto", "fp8", "int8_per_token_head")
    )
    assert fp8.num_tokens == pytest.approx(2 * wide.num_tokens, rel=0.001)
    assert int8.num_tokens == pytest.approx(2 * wide.num_tokens * 128 / 132, rel=0.001)


def test_int4_weights_take_a_little_more_than_a_quarter() -> None:
    """Embeddings and head stay in 16 bits, scales come on top: 8 B parameters in 5.4 GB, not in 4.0."""
    assert deployment(dtype="int4").weight_bytes / 1e9 == pytest.approx(5.7, abs=0.1)


def test_a_model_that_is_too_large_says_by_how_much_and_what_would_fit() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_memory(deployment("llama-3-70b"))
    message = str(caught.value)
    assert caught.value.short_by / GIB == pytest.approx(
        float(re.search(r"short by ([\d.]+)", message)[1]), abs=0.06
    )
    assert "--tp 2" in message and "--dtype fp8" in message and "--gpu b200" in message


def test_with_the_missing_bytes_added_it_fits_and_with_fewer_it_does_not() -> None:
    asked = deployment("llama-3-70b")
    with pytest.raises(DoesNotFit) as caught:
        plan_memory(asked)
    for share, fits in ((1.001, True), (0.97, False)):
        more = asked.hardware.memory_bytes + share * caught.value.short_by / asked.gpu_memory_utilization
        larger = replace(asked, hardware=replace(asked.hardware, memory_bytes=more))
        if fits:
            plan_memory(larger)
        else:
            with pytest.raises(DoesNotFit):
                plan_memory(larger)


@pytest.mark.parametrize("model", ["llama-3-70b", "mixtral-8x7b", "llama-3.1-405b"])
def test_every_remedy_that_is_named_works(model: str) -> None:
    asked = deployment(model)
    for remedy in remedies(asked):
        flag, value = remedy.split()
        change: dict[str, object] = {
            "--tp": {"tp": value},
            "--dtype": {"dtype": value},
            "--max-model-len": {"max_model_len": value},
            "--gpu": {"hardware": get_hardware(value) if flag == "--gpu" else None},
        }[flag]
        change = {key: int(entry) if str(entry).isdigit() else entry for key, entry in change.items()}
        plan_memory(replace(asked, **change))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tp": 3}, "does not divide the 32 heads.*1, 2, 4, 8"),
        ({"pp": 40}, "more than the 32 layers"),
        ({"gpu_memory_utilization": 1.5}, r"share in \(0, 1\]"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        deployment(**settings)


def test_a_card_without_the_arithmetic_says_what_it_has() -> None:
    with pytest.raises(ConfigError, match="has no fp8 arithmetic; it computes in"):
        get_hardware("a100").peak("fp8")
