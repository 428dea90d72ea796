"""The quantised products and the quantisers of tests and loaders follow their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.reference import fp8, int4, int8


def matrix(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("group_size", [2, 32, 64])
def test_int4_is_off_by_half_a_step_at_most_and_keeps_zeros(group_size: int) -> None:
    weight = matrix(8, 64)
    weight[2, 5] = 0
    weight[3] = weight[3].abs() + 1  # a group without a zero in its range
    qweight, scale, zero = int4.quantise_int4(weight, group_size)
    restored = int4.dequantise_int4(qweight, scale, zero, group_size)
    # The zero point is rounded to a step as well, so at the end of the range it may be a whole step.
    assert ((restored - weight).abs() <= scale.repeat_interleave(group_size, 1) * 1.001).all()
    assert ((restored - weight).abs() <= scale.repeat_interleave(group_size, 1) * 0.501).float().mean() > 0.9
    assert restored[2, 5] == 0


def test_int4_restores_what_is_on_its_grid() -> None:
    nibbles = torch.randint(0, 16, (4, 64), generator=torch.Generator().manual_seed(1))
    nibbles[:, ::32], nibbles[:, 1::32] = 0, 15
    weight = (nibbles - 8) * 0.25
    qweight, scale, zero = int4.quantise_int4(weight, 32)
    assert torch.equal(int4.unpack_int4(qweight), nibbles.to(torch.uint8))
    assert torch.equal(int4.dequantise_int4(qweight, scale, zero, 32), weight)


def test_int4_of_zeros_is_zeros_without_a_division_by_zero() -> None:
    quantised = int4.quantise_int4(torch.zeros(2, 32), 32)
    assert not int4.dequantise_int4(*quantised, 32).any()


def test_the_low_nibble_is_the_even_column() -> None:
    assert int4.pack_int4(torch.tensor([[1, 2, 3, 15]], dtype=torch.uint8)).tolist() == [[0x21, 0xF3]]


def test_int4_groups_that_do_not_fit_are_refused() -> None:
    for group_size in (3, 48):
        with pytest.raises(ValueError, match=f"group_size {group_size}"):
            int4.quantise_int4(torch.zeros(2, 64), group_size)


def test_int8_rounds_half_to_even_by_the_row_s_own_scale() -> None:
    row = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0, 3.49]])
    quantised, scale = int8.quantise_int8(torch.cat((row, row * 1e-3)))
    assert quantised.tolist() == [[127, 0, 2, 2, 0, -2, -127, 3]] * 2
    torch.testing.assert_close(scale, torch.tensor([1.0, 1e-3]))


def test_int8_sums_are_exact_where_fp32_sums_are_not() -> None:
    x = torch.full((1, 4096), 127.0)
    qweight = torch.full((1, 4096), 127, dtype=torch.int8)
    qweight[0, 0] = 126
    assert int8.int8_linear(x.double(), qweight, torch.ones(1)).item() == 127 * (127 * 4096 - 1)


def test_fp8_takes_the_nearest_number_ties_to_even_and_saturates() -> None:
    x = torch.tensor([7.92, 500.0, -1e9, 17.0, 19.0, 2**-9, 2**-10, 0.0, float("nan")])
    rounded = fp8.to_e4m3(x).float()
    assert rounded[:-1].tolist() == [8.0, 448.0, -448.0, 16.0, 20.0, 2**-9, 0.0, 0.0]
    assert rounded[-1].isnan()


def test_a_static_scale_is_used_as_given() -> None:
    x, qweight = torch.tensor([[1.0, 900.0]]), torch.eye(2).to(torch.float8_e4m3fn)
    out = fp8.fp8_linear(x, qweight, torch.ones(2), input_scale=torch.tensor(0.5))
    assert out.tolist() == [[1.0, 224.0]]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_zero_row_gives_zeros_and_a_nan_stays_in_its_row(kind: str) -> None:
    linear = {"int8": int8.int8_linear, "fp8": fp8.fp8_linear}[kind]
    quantise = {"int8": int8.quantise_int8, "fp8": fp8.quantise_fp8}[kind]
    x = matrix(3, 32)
    x[0] = 0
    x[1, 7] = float("nan")
    out = linear(x, *quantise(matrix(5, 32, seed=1)))
    assert not out[0].any()
    assert out[1].isnan().all()
    assert out[2].isfinite().all()


@pytest.mark.parametrize(("kind", "relative"), [("int4", 0.1), ("int8", 0.01), ("fp8", 0.04)])
def test_a_product_is_near_that_of_the_unrounded_matrices(kind: str, relative: float) -> None:
    x, weight = matrix(4, 256), matrix(16, 256, seed=1)
    out = {
        "int4": lambda: int4.int4_linear(x, *int4.quantise_int4(weight, 32), 32),
        "int8": lambda: int8.int8_linear(x, *int8.quantise_int8(weight)),
        "fp8": lambda: fp8.fp8_linear(x, *fp8.quantise_fp8(weight)),
    }[kind]()
    wanted = x @ weight.T
    assert (out - wanted).norm() / wanted.norm() < relative
