"""Duration of a step: lower bounds, monotonic in the hardware, sum of its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sim.cost import CostModel, Efficiency, Rates, StepLoad, pairs_of
from engine.sim.hardware import GPUS, get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import MODELS, get_model

IDEAL = Efficiency(1, 1, 1, 1, 1, 0, 0, 0)


def decode(rows: int, context: int = 1000) -> StepLoad:
    return StepLoad(rows, rows, rows, rows * context)


def prompt(tokens: int) -> StepLoad:
    return StepLoad(1, tokens, 1, 0, pairs_of(0, tokens, None), tokens)


loads = st.one_of(
    st.builds(decode, st.integers(1, 256), st.integers(1, 8000)),
    st.builds(prompt, st.integers(2, 8192)),
    st.builds(
        lambda rows, tokens: StepLoad(
            rows + 1, rows + tokens, rows, rows * 500, pairs_of(100, tokens, None), 100 + tokens
        ),
        st.integers(0, 100),
        st.integers(2, 4000),
    ),
)


def ideal(model: str, gpu: str, dtype: str = "bfloat16", **more: object) -> CostModel:
    asked = Deployment(get_model(model), get_hardware(gpu), dtype=dtype, **more)
    return CostModel(asked, Rates.of(asked.hardware, asked.precision.compute_dtype(asked.hardware), IDEAL))


@pytest.mark.parametrize(
    ("model", "gpu", "ms"), [("llama-2-7b", "a100-80", 6.5), ("llama-3-8b", "h100", 4.5)]
)
def test_a_decode_step_of_one_request_takes_the_time_to_read_the_weights(
    model: str, gpu: str, ms: float
) -> None:
    """The usual estimate by hand: 13.2 GB / 2,039 GB/s, 15 GB / 3,350 GB/s (input table not read)."""
    assert 1000 * ideal(model, gpu).seconds(decode(1, 1)) == pytest.approx(ms, rel=0.02)


def test_prefill_takes_two_flops_per_parameter_and_token() -> None:
    cost = ideal("llama-3-8b", "h100")
    tokens = 2000
    linear = 2 * get_model("llama-3-8b").common_params * tokens / 989.4e12
    assert cost.parts(prompt(tokens))["linear"] == pytest.approx(linear)
    assert cost.seconds(prompt(tokens)) == pytest.approx(linear, rel=0.05)  # attention is a few percent


def test_linear_layers_turn_compute_bound_at_the_ridge_point() -> None:
    cost, gpu = ideal("llama-3-8b", "h100"), get_hardware("h100")
    ridge = round(gpu.ridge("bfloat16"))  # 2 FLOP and 2 bytes per parameter: tokens = FLOP per byte
    assert cost.intensity(decode(ridge)) == pytest.approx(gpu.ridge("bfloat16"), rel=0.01)
    below, above = (cost.parts(decode(rows))["linear"] for rows in (ridge // 2, 2 * ridge))
    assert below == cost.parts(decode(1))["linear"]
    assert above == pytest.approx(2 * below, rel=0.01)


def test_attention_of_decodes_reads_every_rows_kv() -> None:
    cost = ideal("llama-3-8b", "h100")
    assert cost.parts(decode(64, 4000))["attention"] == pytest.approx(64 * 4000 * 131_072 / 3.35e12)


@settings(max_examples=60, deadline=None)
@given(loads, st.sampled_from(sorted(MODELS)), st.sampled_from(sorted(GPUS)))
def test_parts_add_up_and_no_step_is_free(load: StepLoad, model: str, gpu: str) -> None:
    cost = CostModel(Deployment(get_model(model), get_hardware(gpu)))
    assert sum(cost.parts(load).values()) == pytest.approx(cost.seconds(load))
    assert cost.seconds(load) > 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.integers(0, 10**7), st.sampled_from(sorted(MODELS)), st.sampled_from([1, 2]))
def test_the_short_way_to_a_decodes_price_gives_the_same_bits(
    rows: int, context: int, model: str, tp: int
) -> None:
    cost = CostModel(Deployment(get_model(model), get_hardware("h100"), tp=tp))
    for _ in range(2):
        assert cost.decode_seconds(rows, context) == cost.seconds(StepLoad(rows, rows, rows, context))


@settings(max_examples=60, deadline=None)
@given(loads, st.sampled_from(sorted(MODELS)), st.floats(1.0, 10.0))
def test_more_of_anything_is_never_slower(load: StepLoad, model: str, factor: float) -> None:
    gpu = get_hardware("h100")
    base = CostModel(Deployment(get_model(model), gpu)).seconds(load)
    more_bandwidth = replace(gpu, bytes_per_s=gpu.bytes_per_s * factor)
    more_flops = replace(gpu, flops={dtype: rate * factor for dtype, rate in gpu.flops.items()})
    for better in (more_bandwidth, more_flops):
        assert CostModel(Deployment(get_model(model), better)).seconds(load) <= base * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(loads, st.sampled_from(sorted(MODELS)), st.integers(1, 50))
def test_more_work_is_never_faster(load: StepLoad, model: str, more: int) -> None:
    cost = CostModel(Deployment(get_model(model), get_hardware("a100")))
    larger = replace(
        load,
        num_rows=load.num_rows + more,
        num_tokens=load.num_tokens + more,
        num_sampled=load.num_sampled + more,
        decode_context=load.decode_context + more,
    )
    assert cost.seconds(larger) >= cost.seconds(load)


@given(st.integers(0, 60), st.integers(1, 60), st.one_of(st.none(), st.integers(1, 50)))
def test_pairs_are_counted_as_one_would_by_hand(start: int, tokens: int, window: int | None) -> None:
    by_hand = sum(min(position + 1, window or position + 1) for position in range(start, start + tokens))
    assert pairs_of(start, tokens, window) == by_hand


def test_fp8_weights_halve_the_floor_of_a_decode_and_int4_saves_no_arithmetic() -> None:
    sixteen, eight, four = (
        ideal("llama-3-70b", "h100", dtype, tp=4) for dtype in ("bfloat16", "fp8", "int4")
    )
    one, many = decode(1, 1), prompt(8192)
    assert eight.parts(one)["linear"] == pytest.approx(sixteen.parts(one)["linear"] / 2)
    assert four.parts(one)["linear"] < eight.parts(one)["linear"]
    assert eight.parts(many)["linear"] == pytest.approx(sixteen.parts(many)["linear"] / 2, rel=0.001)
    assert four.parts(many)["linear"] == sixteen.parts(many)["linear"]


def test_a_mixture_reads_few_experts_for_one_token_and_nearly_all_for_many() -> None:
    shape = get_model("mixtral-8x7b")
    cost = ideal("mixtral-8x7b", "h200")
    one, _ = cost.bytes_and_flops(decode(1))
    many, _ = cost.bytes_and_flops(decode(64))
    head = 2 * shape.vocab_size * shape.hidden_size
    assert one - head == pytest.approx(2 * (shape.common_params + shape.routed_params / 4))
    assert many - head == pytest.approx(2 * (shape.common_params + shape.routed_params), rel=0.001)


def test_tensor_parallel_divides_the_work_and_pays_two_all_reduces_a_layer() -> None:
    one, two = ideal("llama-3-70b", "h200"), ideal("llama-3-70b", "h200", tp=2)
    load = decode(32)
    for part in ("linear", "head", "attention"):
        assert two.parts(load)[part] == pytest.approx(one.parts(load)[part] / 2)
    link = get_hardware("h200").link
    ring = link.latency_s + 32 * 8192 * 2 / link.bytes_per_s  # 2 (p - 1) / p is 1 for two
    gather = 6.6e-6 + 0.6e-6 + 32 * 128_256 / 2 * 4 / link.bytes_per_s
    assert two.parts(load)["collectives"] == pytest.approx((2 * 80 + 1) * ring + gather)
    assert one.parts(load)["collectives"] == 0


def test_pipeline_stages_follow_each_other() -> None:
    one, two = ideal("llama-3-70b", "h200"), ideal("llama-3-70b", "h200", pp=2)
    load = decode(32)
    assert two.seconds(load) == pytest.approx(one.seconds(load) + two.parts(load)["collectives"])
