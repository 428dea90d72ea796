"""8-bit formats on numbers that are hard for them."""

from __future__ import annotations

import pytest
import torch

from engine.layers.linear import Linear
from engine.quant.layouts import ByteLayout
from engine.quant.matrices import E4M3, CheckpointMethod, llm_int8_linear
from engine.quant.online import OnlineConfig
from engine.quant.rounding import fit_grid
from kernels import ops
from kernels.reference.int8 import quantise_int8


def online(scheme: str, weight: torch.Tensor) -> Linear:
    """A layer with this matrix, rounded as it is loaded."""
    layer = Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float32)
    layer.method = OnlineConfig(scheme).linear_method("layer", layer)
    layer.create_weights()
    layer.weight.data.copy_(weight)
    layer.finish_loading()
    return layer


def test_fp8_activations_beyond_the_static_range_saturate() -> None:
    layer = Linear(4, 2, bias=False, dtype=torch.float32)
    layer.method = CheckpointMethod(ByteLayout(E4M3, per_channel=False, static_input=True))
    layer.create_weights()
    layer.stored[""]["weight"].copy_(torch.eye(4)[:2])
    layer.stored[""]["weight_scale"].fill_(1.0)
    layer.stored[""]["input_scale"].fill_(0.5)
    layer.finish_loading()
    assert layer(torch.tensor([[1e6, -1e6, 0.0, 0.0]])).tolist() == [[224.0, -224.0]]


def test_parts_of_a_merged_fp8_layer_keep_their_scales_and_share_the_largest_input_scale() -> None:
    layer = Linear(4, {"q": 2, "k": 1}, bias=False, dtype=torch.float32)
    layer.method = CheckpointMethod(ByteLayout(E4M3, per_channel=False, static_input=True))
    layer.create_weights()
    for part, scale, input_scale in (("q", 2.0, 0.25), ("k", 3.0, 0.5)):
        layer.stored[part]["weight"].copy_(torch.ones(layer.parts[part], 4))
        layer.stored[part]["weight_scale"].fill_(scale)
        layer.stored[part]["input_scale"].fill_(input_scale)
    layer.finish_loading()
    (matrix,) = layer.matrices
    assert matrix.scale.tolist() == [2.0, 2.0, 3.0]
    assert matrix.input_scale.item() == 0.5
    assert layer(torch.ones(1, 4)).tolist() == [[8.0, 8.0, 12.0]]


@pytest.mark.parametrize("scheme", ["rtn", "int8", "int8_weight_only", "fp8", "llm_int8", "mxfp4", "nvfp4"])
def test_rows_of_zeros_stay_zeros(scheme: str) -> None:
    weight = torch.randn(8, 64)
    weight[3] = 0
    layer = online(scheme, weight)
    y = layer(torch.cat((torch.randn(2, 64), torch.zeros(1, 64))))
    assert y.isfinite().all()
    assert not y[:, 3].any() and not y[2].any()


@pytest.mark.parametrize(
    "scheme, bound",
    [("rtn", 0.12), ("int8", 0.015), ("int8_weight_only", 0.01), ("fp8", 0.04), ("llm_int8", 0.015)],
)
def test_products_are_near_the_float_ones(scheme: str, bound: float) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(64, 256), torch.randn(16, 256)
    expected = x @ weight.T
    error = (online(scheme, weight)(x) - expected).norm() / expected.norm()
    assert error < bound


def test_llm_int8_multiplies_outliers_as_floats() -> None:
    """An outlier of 1000 among ones: rounding everything to its scale would lose the ones entirely."""
    torch.manual_seed(0)
    qweight, scale = quantise_int8(torch.randn(32, 128))
    dense = qweight.float() * scale[:, None]
    x = torch.randn(3, 128)
    x[1, 5] = 1000.0
    split = llm_int8_linear(x, qweight, scale)
    whole = ops.int8_linear(x, qweight, scale)
    rest = x.clone()
    rest[1, 5] = 0
    assert torch.equal(split[0], whole[0]) and torch.equal(split[2], whole[2]), "tokens without outliers"
    expected = ops.int8_linear(rest, qweight, scale)[1] + 1000.0 * dense[:, 5]
    torch.testing.assert_close(split[1], expected, rtol=1e-5, atol=1e-3)
    true = x @ dense.T
    assert (split - true)[1].norm() < (whole - true)[1].norm() / 20


def test_a_token_s_outliers_do_not_touch_its_neighbours() -> None:
    qweight, scale = quantise_int8(torch.randn(32, 128))
    x = torch.randn(6, 128) * 4
    together = llm_int8_linear(x, qweight, scale)
    for row in range(6):
        assert torch.equal(llm_int8_linear(x[row : row + 1], qweight, scale)[0], together[row])


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_grid_holds_every_weight_within_half_a_step(symmetric: bool) -> None:
    """The exception is the largest weight of a group on the symmetric grid: it lies at 7.5 steps, and 7 is the last."""
    weight = torch.randn(16, 128)
    grid = fit_grid(weight, 32, symmetric=symmetric, scale_dtype=torch.float32)
    off = ((grid.restore(grid.round(weight)) - weight).reshape(16, 4, 32) / grid.scale[..., None]).abs()
    assert off.max() <= 0.5 + 1e-4
    assert torch.equal(grid.restore(grid.round(torch.zeros(16, 128))), torch.zeros(16, 128))
