"""The building blocks against their definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.attention.backend import get_backend
from engine.attention.forward_context import ForwardContext, get_forward_context, set_forward_context
from engine.config import RopeConfig
from engine.layers.linear import GatedLinear, Linear
from engine.layers.norm import RMSNorm
from engine.layers.rope import RotaryTable, attention_factor, inverse_frequencies
from engine.models.fields import Fields
from engine.models.rope_config import parse_rope
from kernels import ops, registry
from kernels.operations import OPERATIONS
from tests.differential.harness import make_metadata


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_fused_norm_leaves_its_input_and_the_residual_alone(dtype: torch.dtype) -> None:
    x, residual, weight = (torch.randn(3, 16).to(dtype) for _ in range(3))
    before = x.clone(), residual.clone(), weight.clone()
    normed, total = ops.fused_add_rms_norm(x, residual, weight[0], 1e-6)
    for now, then in zip((x, residual, weight), before, strict=True):
        assert torch.equal(now, then)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, ops.rms_norm(total, weight[0], 1e-6))
    assert normed.data_ptr() != total.data_ptr()


def test_rms_norm_multiplies_in_the_dtype_of_the_weight() -> None:
    x, weight = torch.randn(4, 64).bfloat16(), (1 + torch.rand(64)).bfloat16()
    normed = x.float() / (x.float().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), normed.bfloat16() * weight, rtol=1e-2, atol=0)
    assert ops.rms_norm(x, weight, 1e-5).dtype == torch.bfloat16
    assert ops.rms_norm(x, weight.float(), 1e-5).dtype == torch.float32


def test_rms_norm_module_with_a_residual_is_norm_of_the_sum() -> None:
    norm = RMSNorm(8, 1e-6, dtype=torch.float32)
    norm.weight.data = torch.rand(8)
    x, residual = torch.randn(2, 8), torch.randn(2, 8)
    assert torch.equal(norm.add_and_norm(x, residual)[0], norm(x + residual))


@pytest.mark.parametrize("op", sorted(OPERATIONS["norm_linear"].fuses))
def test_a_form_asked_for_by_name_is_not_fused_away(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norm, layer = RMSNorm(8, 1e-6, dtype=torch.float32), GatedLinear(8, 16, bias=False, dtype=torch.float32)
    layer.create_weights()
    norm.weight.data, layer.weight.data = torch.rand(8), torch.randn(32, 8)
    layer.finish_loading()
    x, residual = torch.randn(2, 8), torch.randn(2, 8)
    assert norm.fuses_with(layer) == (registry.preferred("linear", "cpu") == "cpu")
    in_one_pass = norm.then(layer, x, residual)
    calls: list[str] = []
    call = ops.call
    monkeypatch.setattr(ops, "call", lambda name, *args: (calls.append(name), call(name, *args))[1])
    monkeypatch.setitem(registry._forced, op, "reference")
    for found, expected in zip(norm.then(layer, x, residual), in_one_pass, strict=True):
        torch.testing.assert_close(found, expected)
    assert "norm_linear" not in calls
    if op in ("fused_add_rms_norm", "silu_and_mul", "gated_linear", "linear"):
        assert op in calls


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    table = RotaryTable(RopeConfig(10000.0), head_dim=8, max_position=64)
    query, key = torch.randn(1, 2, 8).expand(64, 2, 8), torch.randn(1, 2, 8).expand(64, 2, 8)
    cos, sin = table(torch.arange(64))
    rotated_query, rotated_key = ops.rotary_embedding(query, cos, sin), ops.rotary_embedding(key, cos, sin)
    torch.testing.assert_close(rotated_query.norm(dim=-1), query.norm(dim=-1))
    assert torch.equal(rotated_query[0], query[0])
    scores = torch.einsum("qhd,khd->hqk", rotated_query, rotated_key)
    torch.testing.assert_close(scores[:, 10, 3], scores[:, 60, 53], rtol=1e-4, atol=1e-4)


def test_llama3_scaling_keeps_fast_pairs_and_slows_the_rest_by_the_factor() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = inverse_frequencies(RopeConfig(500000.0), 128)
    scaled = inverse_frequencies(RopeConfig(500000.0, scaling), 128)
    wavelength = 2 * math.pi / plain
    fast, slow = wavelength < 8192 / 4, wavelength > 8192
    assert torch.equal(scaled[fast], plain[fast])
    torch.testing.assert_close(scaled[slow], plain[slow] / 8)
    between = ~fast & ~slow
    assert (
        between.any()
        and (scaled[between] < plain[between]).all()
        and (scaled[between] > plain[between] / 8).all()
    )


HALF = 16  # pairs of a head of 32
ROPE_RULES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0},
    "yarn, betas": {"factor": 16.0, "beta_fast": 4.0, "beta_slow": 0.5},
    "yarn, not truncated": {"factor": 4.0, "truncate": False},
    "yarn, one pair": {"factor": 4.0, "beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
    "yarn, mscale": {"factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn, mscale alone": {"factor": 40.0, "mscale": 0.7},
    "yarn, attention factor": {"factor": 4.0, "attention_factor": 1.5},
    "yarn, factor from the lengths": {"original_max_position_embeddings": 64, "factor": None},
    "dynamic": {"factor": 4.0},
    "longrope": {
        "short_factor": [1.0 + 0.1 * i for i in range(HALF)],
        "long_factor": [1.0 + i * i for i in range(HALF)],
        "original_max_position_embeddings": 64,
    },
    "longrope, factor": {
        "short_factor": [1.0] * HALF,
        "long_factor": [3.0] * HALF,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize("length", [None, 256, 300, 1024])
@pytest.mark.parametrize("rule", ROPE_RULES)
def test_frequencies_and_attention_factors_are_those_of_transformers(rule: str, length: int | None) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope_type = rule.partition(",")[0]
    parameters = {"rope_type": rope_type, "rope_theta": 10000.0, **ROPE_RULES[rule]}
    shape = {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 256}
    theirs = LlamaConfig(**shape, rope_parameters=dict(parameters))
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope_type](theirs, "cpu", seq_len=length)
    fields = Fields({"rope_parameters": parameters}, "config.json")
    rope, served = parse_rope(fields, head_dim=32, positions=256, max_model_len=length)
    assert served >= min(length or 0, 256)
    torch.testing.assert_close(inverse_frequencies(rope, 32), frequencies, rtol=1e-6, atol=0)
    assert attention_factor(rope) == pytest.approx(factor, rel=1e-6)
    cos, sin = RotaryTable(rope, 32, 8)(torch.tensor([7]))
    torch.testing.assert_close(cos[0], (7 * frequencies).cos() * factor, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sin[0], (7 * frequencies).sin() * factor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 17])
def test_a_packed_weight_gives_the_product_of_the_plain_one(rows: int) -> None:
    x, weight, bias = torch.randn(rows, 24), torch.randn(10, 24), torch.randn(10)
    packed = ops.pack_weight(weight)
    torch.testing.assert_close(ops.linear(x, packed, bias), ops.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


def test_parts_of_a_merged_projection_are_views_of_its_rows() -> None:
    layer = Linear(4, {"q_proj": 6, "k_proj": 2, "v_proj": 2}, bias=True, dtype=torch.float32)
    layer.create_weights()
    parts = dict(layer.checkpoint_tensors("attn.qkv_proj"))
    assert {name.removeprefix("attn."): tuple(part.shape) for name, part in parts.items()} == {
        "q_proj.weight": (6, 4),
        "k_proj.weight": (2, 4),
        "v_proj.weight": (2, 4),
        "q_proj.bias": (6,),
        "k_proj.bias": (2,),
        "v_proj.bias": (2,),
    }
    parts["attn.k_proj.weight"].fill_(7.0)
    assert (layer.weight[6:8] == 7.0).all()


def test_forward_contexts_do_not_nest_and_end_with_their_block() -> None:
    backend = get_backend("reference", "cpu", torch.float32)
    context = ForwardContext(make_metadata([([1], 0, 1)], 4), backend, torch.zeros(0))
    with pytest.raises(RuntimeError, match="no forward pass is under way"):
        get_forward_context()
    with pytest.raises(ZeroDivisionError), set_forward_context(context):
        assert get_forward_context() is context
        with pytest.raises(RuntimeError, match="do not nest"), set_forward_context(context):
            pass
        assert get_forward_context() is context
        raise ZeroDivisionError
    with set_forward_context(context):
        pass
