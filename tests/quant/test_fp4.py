"""MXFP4 and NVFP4: every code, how scales are chosen, what saturates, and what it costs."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ConfigError
from engine.layers.linear import Linear
from engine.quant.format_errors import relative_error, rounded_layer, with_large_weights
from engine.quant.fp4 import (
    E8M0_BIAS,
    FP4_BLOCKS,
    from_e2m1,
    from_e8m0,
    quantise_fp4,
    quantise_mxfp4,
    quantise_nvfp4,
    to_e2m1,
)
from engine.quant.online import OnlineConfig, _say_emulated
from engine.quant.size import estimate_size

PUBLISHED_E2M1 = {
    0b0000: 0.0,
    0b0001: 0.5,
    0b0010: 1.0,
    0b0011: 1.5,
    0b0100: 2.0,
    0b0101: 3.0,
    0b0110: 4.0,
    0b0111: 6.0,
    0b1000: -0.0,
    0b1001: -0.5,
    0b1010: -1.0,
    0b1011: -1.5,
    0b1100: -2.0,
    0b1101: -3.0,
    0b1110: -4.0,
    0b1111: -6.0,
}
"""OCP MX v1.0, section 5.3.3: sign, two bits of exponent with bias 1, one bit of fraction."""


def of_bits(code: int) -> float:
    """Return the value of four bits by the definition of the format."""
    sign, exponent, fraction = -1 if code & 8 else 1, code >> 1 & 3, code & 1
    size = fraction * 0.5 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1)
    return math.copysign(size, sign)


def test_every_code_stands_for_the_number_of_the_published_table_and_comes_back() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    values = from_e2m1(codes)
    for code, value in enumerate(values.tolist()):
        assert value == PUBLISHED_E2M1[code] == of_bits(code)
        assert math.copysign(1, value) == math.copysign(1, PUBLISHED_E2M1[code])
    assert torch.equal(to_e2m1(values), codes)


@given(st.floats(-10, 10, width=32))
@settings(max_examples=300, deadline=None)
def test_rounding_goes_to_the_nearest_number_and_from_the_middle_to_the_even_code(x: float) -> None:
    code = int(to_e2m1(torch.tensor([x])))
    nearest = min(abs(PUBLISHED_E2M1[other] - x) for other in range(16))
    assert abs(PUBLISHED_E2M1[code] - x) == nearest


def test_halves_go_to_the_even_code_and_what_is_beyond_six_becomes_six() -> None:
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert from_e2m1(to_e2m1(middles)).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert from_e2m1(to_e2m1(-middles)).tolist() == [0, -1, -1, -2, -2, -4, -4]
    assert from_e2m1(to_e2m1(torch.tensor([6.5, 7.99, 1e30, -1e30]))).tolist() == [6, 6, 6, -6]


def test_every_e8m0_code_is_its_power_of_two() -> None:
    codes = torch.arange(255, dtype=torch.uint8)
    assert from_e8m0(codes).tolist() == [2.0 ** (code - E8M0_BIAS) for code in range(255)]


@pytest.mark.parametrize(
    "largest, exponent", [(4.0, 0), (6.0, 0), (7.99, 0), (8.0, 1), (3.99, -1), (1.0, -2), (2.0**-10, -12)]
)
def test_mxfp4_takes_the_scale_of_the_specification(largest: float, exponent: int) -> None:
    """6.3: the power of two of the largest weight over that of the format's largest, 4."""
    weight = torch.zeros(1, 32)
    weight[0, 5] = -largest
    rounded = quantise_mxfp4(weight)
    assert rounded.block_scale.tolist() == [[exponent + E8M0_BIAS]]
    scaled = largest / 2.0**exponent
    assert 4 <= scaled < 8
    assert (
        rounded.restore()[0, 5] == -min(from_e2m1(to_e2m1(torch.tensor([scaled]))).item(), 6) * 2.0**exponent
    )


def test_mxfp4_saturates_where_nvfp4_does_not() -> None:
    weight = torch.zeros(1, 32)
    weight[0, 0] = 7.9
    assert quantise_mxfp4(weight).restore()[0, 0] == 6
    assert quantise_nvfp4(weight).restore()[0, 0] == pytest.approx(7.9)


def test_nvfp4_brings_the_largest_block_to_the_top_of_e4m3_and_each_other_in_proportion() -> None:
    weight = torch.zeros(2, 32)
    weight[0, 0], weight[0, 16], weight[1, 3] = 12.0, 3.0, -0.75
    rounded = quantise_nvfp4(weight)
    assert rounded.tensor_scale == torch.tensor(12.0 / (6 * 448))
    assert rounded.block_scale.float().tolist() == [[448.0, 112.0], [28.0, 0.0]]
    torch.testing.assert_close(rounded.restore(), weight)


def test_a_block_too_small_for_an_e4m3_scale_becomes_zeros() -> None:
    weight = torch.full((1, 32), 1.0)
    weight[0, 16:] = 1e-7
    restored = quantise_nvfp4(weight).restore()
    assert (
        torch.equal(restored[0, :16], torch.full((16,), restored[0, 0].item())) and not restored[0, 16:].any()
    )
    assert quantise_mxfp4(torch.cat((weight[:, :16],) * 2 + (weight[:, 16:],) * 2, 1)).restore()[0, 32:].all()


@pytest.mark.parametrize("name", FP4_BLOCKS)
def test_blocks_of_zeros_stay_zeros_and_touch_nobody(name: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 64)
    weight[1], weight[2, :32] = 0, 0
    restored = quantise_fp4(weight, name).restore()
    assert restored.isfinite().all() and not restored[1].any() and not restored[2, :32].any()
    assert not quantise_fp4(torch.zeros(2, 64), name).restore().any()


@pytest.mark.parametrize("name", FP4_BLOCKS)
def test_rounding_again_changes_nothing(name: str) -> None:
    once = quantise_fp4(torch.randn(16, 128) * 0.05, name).restore()
    torch.testing.assert_close(quantise_fp4(once, name).restore(), once, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", FP4_BLOCKS)
def test_an_mxfp4_block_needs_only_its_own_weights_and_an_nvfp4_block_the_matrix_s_largest(name: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 64)
    louder = weight.clone()
    louder[3, 40] = 1000.0
    before, after = quantise_fp4(weight, name).restore(), quantise_fp4(louder, name).restore()
    assert torch.equal(before[:3], after[:3]) == (name == "mxfp4")


@pytest.mark.parametrize("name, bits", [("mxfp4", 4.25), ("nvfp4", 4.5)])
def test_bits_per_weight_are_exact(name: str, bits: float) -> None:
    rows, columns = 64, 256
    stored = quantise_fp4(torch.randn(rows, columns), name).nbytes
    tensor_scale = 4 if name == "nvfp4" else 0
    assert 8 * (stored - tensor_scale) == bits * rows * columns
    shapes = {"model.q_proj.weight": (rows, columns), "model.norm.weight": (columns,)}
    assert estimate_size(shapes, name).matrix_bytes == stored


def test_parts_of_a_merged_layer_have_tensor_scales_of_their_own() -> None:
    torch.manual_seed(0)
    weight = torch.randn(32, 64)
    weight[16:] *= 1e6
    layer = Linear(64, {"q": 16, "k": 16}, bias=False, dtype=torch.float32)
    layer.method = OnlineConfig("nvfp4").linear_method("layer", layer)
    layer.create_weights()
    layer.weight.data.copy_(weight)
    layer.finish_loading()
    eye = torch.eye(64)
    expected = torch.cat([quantise_nvfp4(part).restore() for part in weight.split(16)])
    torch.testing.assert_close(layer(eye).T, expected)
    assert expected[:16].any(), "one scale for both would have left nothing of the small one"


@pytest.mark.parametrize("name", FP4_BLOCKS)
def test_a_token_gets_the_same_bits_alone_and_in_a_batch(name: str) -> None:
    torch.manual_seed(0)
    layer, x = rounded_layer(OnlineConfig(name), torch.randn(96, 128)), torch.randn(40, 128)
    together = layer(x)
    for row in range(40):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


def test_errors_come_in_the_order_of_the_bits_and_small_blocks_keep_outliers_to_themselves() -> None:
    torch.manual_seed(0)
    x, plain = torch.randn(64, 256), torch.randn(128, 256)

    def error(scheme: str, weight: torch.Tensor, group: int | None = None) -> float:
        return relative_error(rounded_layer(OnlineConfig(scheme, group), weight)(x), x @ weight.T)

    assert (
        error("int8_weight_only", plain) < error("fp8", plain) < error("nvfp4", plain) < error("mxfp4", plain)
    )
    loud = with_large_weights(plain)
    assert error("nvfp4", loud) < error("mxfp4", loud) < error("rtn", loud, 128)


@pytest.mark.parametrize("name", FP4_BLOCKS)
def test_what_the_formats_cannot_hold_is_refused(name: str) -> None:
    block = FP4_BLOCKS[name]
    layer = Linear(block + 8, 16, bias=False, dtype=torch.float32)
    with pytest.raises(ConfigError, match=f"layer has {block + 8} input columns.*blocks of {block}.*rtn"):
        OnlineConfig(name).linear_method("layer", layer)
    for bad in (math.inf, math.nan):
        with pytest.raises(ConfigError, match=f"not finite, which {name}"):
            quantise_fp4(torch.full((2, block), bad), name)


def test_the_log_says_once_that_it_is_emulated(caplog: pytest.LogCaptureFixture) -> None:
    _say_emulated.cache_clear()
    with caplog.at_level(logging.WARNING, "engine.quant.online"):
        for _ in range(2):
            OnlineConfig.from_config({"quant_method": "online", "scheme": "nvfp4"})
    assert [("nvfp4 is emulated" in record.message) for record in caplog.records] == [True]
