"""The products with packed weights in fp32 and in bf16, and the packing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels import ops
from kernels.cpu import build
from tests.kernels.cpu_mutants import assert_noticed, same_with_any_number_of_threads

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import linear
from kernels.cpu.linear import pack_weight
from tests.kernels.cpu_constants import around, constant

PANEL = 2 * linear._LANES
NUM_ROWS = around("gemm.h", "ROWS_AT_ONCE")


def exact(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = x.double() @ weight.double().T
    return (y if bias is None else y + bias.double()).float()


def rounded(*shape: int) -> Tensor:
    """Numbers that are bf16 numbers as well, so that the panels take half the space."""
    return torch.randn(*shape).bfloat16().float()


@pytest.mark.parametrize("make", [torch.randn, rounded], ids=["fp32 panels", "bf16 panels"])
@pytest.mark.parametrize("out", [1, PANEL - 1, PANEL, PANEL + 1, 3 * PANEL + 5, 200])
def test_a_packed_matrix_comes_back_bit_for_bit(out: int, make: object) -> None:
    for width in (2, 3, 64, 257):
        weight = make(out, width)
        weight[0, -1] = -0.0
        packed = pack_weight(weight)
        assert packed.is_bf16 == (make is rounded)
        assert torch.equal(packed.to_dense().view(torch.int32), weight.view(torch.int32))
    assert packed.nbytes == -(-out // PANEL) * PANEL * width * (2 if packed.is_bf16 else 4)


def test_special_numbers_survive_packing() -> None:
    weight = torch.tensor([[torch.inf, -torch.inf, 0.0, -0.0, 1e-40, 3.3895e38]]).bfloat16().float()
    for matrix in (weight, torch.cat((weight, torch.tensor([[1e-45, 0.1, 1e38, 0, 0, 0]])))):
        assert torch.equal(pack_weight(matrix).to_dense().view(torch.int32), matrix.view(torch.int32))
    assert pack_weight(weight).is_bf16 and not pack_weight(weight + 0.1).is_bf16
    assert pack_weight(torch.full((3, 3), torch.nan)).to_dense().isnan().all()


def test_a_weight_that_is_a_view_is_packed_as_it_looks() -> None:
    wide = torch.randn(90, 80)
    for view in (wide[3:50, 7:40], wide.T):
        assert torch.equal(pack_weight(view).to_dense(), view)


@pytest.mark.parametrize("rows", [1, 2, 5, 13, 97])
def test_bf16_panels_give_the_product_of_fp32_panels_bit_for_bit(rows: int) -> None:
    x, weight, bias = torch.randn(rows, 130), rounded(3 * PANEL + 7, 130), torch.randn(3 * PANEL + 7)
    small = pack_weight(weight)
    low, high = small.panels << 16, small.panels & -65536
    wide = linear.PackedWeight(
        torch.cat((low, high), dim=-1).view(torch.float32).contiguous(), small.out_features, 130
    )
    assert small.is_bf16 and not wide.is_bf16
    assert torch.equal(linear.linear(x, small, bias), linear.linear(x, wide, bias))


@pytest.mark.parametrize("make", [torch.randn, rounded], ids=["fp32 panels", "bf16 panels"])
@pytest.mark.parametrize("width", [96, 1024])
def test_a_row_is_the_same_alone_and_in_a_batch_of_any_size(width: int, make: object) -> None:
    """width 1024: rows that would collide in the cache are moved apart first, from five rows on."""
    weight, bias = make(5 * PANEL + 3, width), torch.randn(5 * PANEL + 3)
    packed, x = pack_weight(weight), torch.randn(NUM_ROWS[-1], width)
    assert weight.numel() * len(x) > constant("gemm.h", "WORTH_THREADS")
    alone = torch.cat([linear.linear(row[None], packed, bias) for row in x])
    torch.testing.assert_close(alone, exact(x, weight, bias), rtol=0, atol=1e-5 * width**0.5)
    for rows in (*range(2, 30), 95, 96, 97, 108, *NUM_ROWS):
        assert torch.equal(linear.linear(x[:rows], packed, bias), alone[:rows]), rows
    assert torch.equal(same_with_any_number_of_threads(lambda: linear.linear(x, packed, bias)), alone)
    assert torch.equal(same_with_any_number_of_threads(lambda: linear.linear(x[:7], packed, bias)), alone[:7])


def test_rows_may_lie_in_a_wider_matrix() -> None:
    weight, wide = torch.randn(70, 64), torch.randn(20, 1024)
    packed = pack_weight(weight)
    for x in (wide[:, 5:69], wide[::2, 960:], wide[7:8, 3:67]):
        assert torch.equal(linear.linear(x, packed), linear.linear(x.contiguous(), packed))


def test_a_nan_stays_in_its_row_and_in_its_column() -> None:
    x, weight = torch.randn(30, 96), torch.randn(70, 96)
    expected = linear.linear(x, pack_weight(weight))
    x[3], x[17, 5] = torch.nan, torch.inf
    weight[69, 95] = torch.nan
    found = linear.linear(x, pack_weight(weight))
    clean = [row for row in range(30) if row not in (3, 17)]
    assert torch.equal(found[clean, :69], expected[clean, :69])
    assert found[3].isnan().all() and found[:, 69].isnan().all()
    assert not found[17, :69].isfinite().any()


@pytest.mark.parametrize("out", [1, 70, PANEL])
def test_no_rows(out: int) -> None:
    assert linear.linear(torch.empty(0, 64), pack_weight(torch.randn(out, 64))).shape == (0, out)


def test_the_door_packs_fp32_and_bf16_and_leaves_fp16_as_it_is() -> None:
    kinds = {torch.float32: linear.PackedWeight, torch.bfloat16: linear.PackedPairs, torch.float16: Tensor}
    for dtype, kind in kinds.items():
        weight, x = torch.randn(40, 64).to(dtype), torch.randn(9, 64).to(dtype)
        packed = ops.pack_weight(weight)
        assert isinstance(packed, kind)
        y = ops.linear(x, packed)
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), exact(x, weight), rtol=2e-2, atol=0.15)


def test_what_the_kernel_does_not_take_is_told_with_what_it_takes() -> None:
    x, weight = torch.randn(2, 8), torch.randn(4, 8)
    assert linear.unsupported_linear(x, weight) == "the weight does not come from pack_weight"
    for mine, other in ((x, x.bfloat16()), (x.bfloat16(), x)):
        packed = pack_weight(weight.to(mine.dtype))
        assert linear.unsupported_linear(mine, packed) is None
        needed = str(mine.dtype).removeprefix("torch.")
        assert f"supported with this weight: {needed}" in linear.unsupported_linear(other, packed)
    assert (
        linear.unsupported_linear(x, pack_weight(weight), None, torch.float16) == "results in torch.float16"
    )


# --- bf16: pairs of numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", [1, PANEL - 1, PANEL, PANEL + 1, 200])
def test_a_bf16_matrix_comes_back_bit_for_bit(out: int) -> None:
    for width in (1, 2, 3, 64, 257):
        weight = torch.randn(out, width).bfloat16()
        weight[0, -1] = -0.0
        packed = pack_weight(weight)
        assert torch.equal(packed.to_dense().view(torch.int16), weight.view(torch.int16))
        assert packed.nbytes == -(-out // PANEL) * PANEL * (width + width % 2) * 2


@pytest.mark.parametrize("width", [1, 95, 96, 2048])
def test_a_bf16_row_is_the_same_alone_and_in_a_batch_and_sums_are_fp32(width: int) -> None:
    """width 2048: rows that would collide in the cache are moved apart first, from five rows on."""
    x, weight, bias = (
        torch.randn(*shape).bfloat16() for shape in ((NUM_ROWS[-1], width), (3 * PANEL + 3, width), (99,))
    )
    packed, wide = pack_weight(weight), torch.float32
    bias = bias[:1].expand(3 * PANEL + 3).contiguous()
    alone = torch.cat([linear.linear(row[None], packed, bias, wide) for row in x])
    torch.testing.assert_close(alone, exact(x, weight, bias), rtol=0, atol=1e-5 * width**0.5)
    for rows in (*range(2, 14), 25, 95, 108, *NUM_ROWS):
        assert torch.equal(linear.linear(x[:rows], packed, bias, wide), alone[:rows]), rows
        assert torch.equal(linear.linear(x[:rows], packed, bias), alone[:rows].bfloat16()), rows
    assert torch.equal(same_with_any_number_of_threads(lambda: linear.linear(x, packed, bias, wide)), alone)


@pytest.mark.parametrize("width", [63, 64])
@pytest.mark.parametrize("first", [4, 5])
def test_bf16_rows_may_lie_in_a_wider_matrix_with_nan_around_them(first: int, width: int) -> None:
    wide = torch.full((20, 1024), torch.nan).bfloat16()
    columns = slice(first, first + width)
    wide[:, columns] = torch.randn(20, width).bfloat16()
    packed = pack_weight(torch.randn(70, width).bfloat16())
    for x in (wide[:, columns], wide[::2, columns], wide[7:8, columns]):
        assert torch.equal(linear.linear(x, packed), linear.linear(x.contiguous(), packed))


def test_a_nan_stays_in_its_bf16_row_and_column() -> None:
    x, weight = torch.randn(30, 97).bfloat16(), torch.randn(70, 97).bfloat16()
    expected = linear.linear(x, pack_weight(weight))
    x[3], weight[69, 96] = torch.nan, torch.nan
    found = linear.linear(x, pack_weight(weight))
    clean = [row for row in range(30) if row != 3]
    assert torch.equal(found[clean, :69], expected[clean, :69])
    assert found[3].isnan().all() and found[:, 69].isnan().all()


BF16_FAULTS = {
    "the odd last number is forgotten": ("if (whole < num_pairs)", "if (false)"),
    "rows lie densely": ("p.x + first * p.x_stride", "p.x + first * p.depth"),
    "the second vector of a panel is the first": (
        "from = panels + (v / 2 * num_pairs + pair) * PANEL + v % 2 * LANES",
        "from = panels + (v / 2 * num_pairs + pair) * PANEL",
    ),
    "results are always bf16": ("if (wide)", "if (false)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BF16_FAULTS)
def test_the_check_notices_in_bf16(fault: str, tmp_path: Path) -> None:
    given = ("linear", linear, "_gemm_bf16", "gemm_bf16.cpp", BF16_FAULTS[fault], tmp_path)
    assert_noticed(*given, size="small", dtype=torch.bfloat16)


FAULTS = {
    "the last product is forgotten": ("k < p.depth; k++", "k < p.depth - 1; k++"),
    "the low half keeps what belongs to the high": ("(vfloat)(words << 16)", "(vfloat)words"),
    "rows lie densely": ("p.x + first * p.x_stride", "p.x + first * p.depth"),
}


HEADER_FAULTS = {
    "the last column is forgotten": ("std::max<int64_t>(0, count)", "std::max<int64_t>(0, count - 1)"),
    "the tail takes the first bias": ("load_first(bias + column, count)", "load_first(bias, count)"),
    "the second panel's bias": ("load(bias + column)", "load(bias + column % PANEL)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", HEADER_FAULTS)
def test_the_check_notices_in_the_header(fault: str, tmp_path: Path) -> None:
    assert_noticed("linear", linear, "_gemm", "gemm.h", HEADER_FAULTS[fault], tmp_path, size="small")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    assert_noticed("linear", linear, "_gemm", "gemm.cpp", FAULTS[fault], tmp_path, size="small")
