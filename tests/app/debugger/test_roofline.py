"""The roofline of a model: against the cost model, against the kernels' own roofline, and against sums by hand."""

from __future__ import annotations

import pytest
import torch

from app.debugger.capacity.roofline import Operation, Roofline, first_compute_bound, operations
from app.debugger.capacity.scenario import Scenario
from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.memory import Deployment
from kernels.bench.roofline import work
from tests.app.debugger.pages import Opener, said

SCENARIOS = [
    Scenario(),
    Scenario(model="llama-3-70b", tp=8, dtype="fp8", kv_cache_dtype="fp8"),
    Scenario(model="mixtral-8x7b", gpu="h200", dtype="int4"),
    Scenario(model="qwen3-30b-a3b", gpu="a100-80"),
    Scenario(model="deepseek-v3", gpu="b200", tp=16),
    Scenario(model="mistral-7b", gpu="l4"),
]


def by_label(deployment: Deployment, batch: int, context: int) -> dict[str, Operation]:
    return {operation.label: operation for operation in operations(deployment, batch, context)}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.parametrize(("batch", "context"), [(1, 128), (64, 2048), (300, 8192)])
def test_the_flops_are_those_of_the_cost_model(scenario: Scenario, batch: int, context: int) -> None:
    deployment, found = scenario.deployment, by_label(scenario.deployment, batch, context)
    cost, model = CostModel(deployment), deployment.model
    load = StepLoad(batch, batch, batch, batch * model.kv_tokens_held(context))
    _, flops = cost.bytes_and_flops(load)
    linear = [each for each in found.values() if each.phase == "decode" and not each.is_attention]
    assert sum(each.flops for each in linear) == pytest.approx(flops, rel=2e-3), "norms are no products"
    chunk = min(context, deployment.max_num_batched_tokens)
    pairs = pairs_of(context - chunk, chunk, model.sliding_window)
    moved, attended = cost.attention_work(StepLoad(decode_context=load.decode_context, prefill_pairs=pairs))
    attention = found["Attention, decode"]
    assert found["Attention, prefill"].flops == pytest.approx(attended)
    assert attention.bytes > moved > 0.7 * attention.bytes - batch * 1e6, "the KV, and queries and outputs"


@pytest.mark.parametrize("tokens", [1, 48])
def test_the_bytes_are_those_of_the_kernels_roofline(tokens: int) -> None:
    """Linear layers of every layer of a dense model in 16 bits, by the function that judges the kernels."""
    deployment = Scenario().deployment
    model, found = deployment.model, by_label(deployment, tokens, 512)

    def product(out_features: int, in_features: int) -> tuple[int, int]:
        like = {"dtype": torch.bfloat16, "device": "meta"}
        done = work(
            "linear", torch.empty(tokens, in_features, **like), torch.empty(out_features, in_features, **like)
        )
        return done.bytes, done.flops

    wide, inner, vocab, layers = (
        model.hidden_size,
        model.intermediate_size,
        model.vocab_size,
        model.num_layers,
    )
    for name, shapes, times in (
        ("QKV", [(wide + 2 * model.num_kv_heads * model.head_dim, wide)], layers),
        ("Output", [(wide, wide)], layers),
        ("MLP", [(2 * inner, wide), (wide, inner)], layers),
        ("LM head", [(vocab, wide)], 1),
    ):
        expected = [times * sum(sizes) for sizes in zip(*(product(*shape) for shape in shapes), strict=True)]
        assert [found[f"{name}, decode"].bytes, found[f"{name}, decode"].flops] == expected, name


def test_one_request_on_an_h100_by_hand() -> None:
    roofline = Roofline(Scenario().deployment)
    mlp = by_label(roofline.deployment, 1, 1024)["MLP, decode"]
    weights = 32 * 3 * 4096 * 14336
    assert mlp.flops == 2 * weights
    assert mlp.bytes == 2 * (weights + 32 * (2 * 4096 + 3 * 14336))
    assert mlp.intensity == pytest.approx(1, rel=1e-3) and roofline.bound(mlp) == "memory"
    assert roofline.least_seconds(mlp) == pytest.approx(mlp.bytes / 3.35e12)
    assert roofline.planned_seconds(mlp) == pytest.approx(mlp.bytes / (0.8 * 3.35e12))


def test_the_batch_moves_linear_layers_to_the_right_and_not_attention() -> None:
    deployment = Scenario().deployment
    few, many = by_label(deployment, 4, 2048), by_label(deployment, 256, 2048)
    assert many["MLP, decode"].intensity > 50 * few["MLP, decode"].intensity
    assert many["Attention, decode"].intensity == pytest.approx(few["Attention, decode"].intensity)
    longer = by_label(deployment, 4, 8192)
    assert longer["Attention, prefill"].intensity > 3 * few["Attention, prefill"].intensity


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_first_compute_bound_batch_is_the_first(scenario: Scenario) -> None:
    roofline = Roofline(scenario.deployment)
    first = first_compute_bound(roofline, 1024)
    assert first is not None

    def bound(batch: int) -> str:
        found = by_label(roofline.deployment, batch, 1024)
        return roofline.bound(found["Experts, decode" if roofline.deployment.model.moe else "MLP, decode"])

    assert (bound(first - 1), bound(first)) == ("memory", "compute")


def test_every_point_lies_on_its_roof_and_below_no_plan() -> None:
    for scenario in SCENARIOS:
        roofline = Roofline(scenario.deployment)
        for operation in operations(scenario.deployment, 32, 2048):
            reached = roofline.attainable(operation.intensity, operation.compute)
            assert reached <= roofline.hardware.peak(operation.compute)
            assert roofline.planned_seconds(operation) > roofline.least_seconds(operation) > 0


def test_the_view_opens_by_its_link_follows_the_sliders_and_keeps_its_address(open_page: Opener) -> None:
    app = open_page("capacity", view="roofline", batch=64, context=4096)
    assert not app.exception and "In decode MLP turns compute-bound from a batch of 324" in said(app)
    assert app.select_slider(key="roofline batch").value == 64
    app.select_slider(key="roofline batch").set_value(512).run()
    assert not app.exception and "Decode: QKV, Output, MLP and LM head compute-bound" in said(app)
    assert app.query_params["batch"] == "512" and app.query_params["view"] == "roofline"
    damaged = open_page("capacity", view="roofline", batch="many", context="-1")
    assert not damaged.exception and damaged.select_slider(key="roofline batch").value == 18, (
        "the plan's batch"
    )
    short = open_page("capacity", view="roofline", model="llama-2-7b", batch=1, context=100_000)
    assert not short.exception and short.select_slider(key="roofline context").value == 4096
