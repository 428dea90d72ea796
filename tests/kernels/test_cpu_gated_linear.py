"""The product of gate and up with the activation in it."""

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

from kernels.cpu import gated_linear, linear

LANES = linear._LANES
DTYPES = [torch.float32, torch.bfloat16]


def drawn(rows: int, size: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(rows, width).to(dtype),
        torch.randn(2 * size, width).to(dtype),
        torch.randn(2 * size).to(dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, LANES - 1, LANES, LANES + 1, 5 * LANES + 3])
def test_one_pass_gives_the_bits_of_two(size: int, dtype: torch.dtype) -> None:
    for rows in (1, 2, 3, 5, 13, 40):
        x, weight, bias = drawn(rows, size, 67, dtype)
        packed, plain = ops.pack_weight(weight, gated=True), ops.pack_weight(weight)
        for some in (None, bias):
            product = ops.linear(x, plain, some)
            assert torch.equal(ops.linear(x, packed, some), product)
            assert torch.equal(ops.gated_linear(x, packed, some), ops.silu_and_mul(product))
        wide = ops.linear(x, packed, out_dtype=torch.float32)
        assert torch.equal(wide, ops.linear(x, plain, out_dtype=torch.float32))


@pytest.mark.parametrize("dtype", [*DTYPES, "bf16 in fp32"], ids=str)
@pytest.mark.parametrize("size", [1, LANES, LANES + 1, 3 * LANES + 5])
def test_a_packed_matrix_comes_back_bit_for_bit(size: int, dtype: torch.dtype | str) -> None:
    weight = torch.randn(2 * size, 33).to(dtype if isinstance(dtype, torch.dtype) else torch.bfloat16)
    weight = weight if isinstance(dtype, torch.dtype) else weight.float()
    assert torch.equal(gated_linear.pack_weight(weight).to_dense(), weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_is_the_same_alone_and_in_a_batch_for_all_threads(dtype: torch.dtype) -> None:
    x, weight, bias = drawn(230, 7 * LANES + 2, 256, dtype)
    packed = ops.pack_weight(weight, gated=True)
    together = same_with_any_number_of_threads(lambda: ops.gated_linear(x, packed, bias))
    for row in range(0, 230, 23):
        assert torch.equal(ops.gated_linear(x[row : row + 1], packed, bias), together[row : row + 1])


def test_what_the_kernel_does_not_take_is_computed_by_the_reference() -> None:
    x, weight, _ = drawn(3, 20, 64, torch.float32)
    plain = linear.pack_weight(weight)
    assert gated_linear.unsupported_gated_linear(x, plain) == "the weight was packed without gated=True"
    assert "supported with this weight" in str(
        gated_linear.unsupported_gated_linear(x.bfloat16(), gated_linear.pack_weight(weight))
    )
    torch.testing.assert_close(ops.gated_linear(x, weight), ops.silu_and_mul(ops.linear(x, weight)))


def test_no_rows() -> None:
    packed = ops.pack_weight(torch.randn(80, 64), gated=True)
    assert ops.gated_linear(torch.empty(0, 64), packed).shape == (0, 40)


GATE, UP = "gate = plus_bias(tile.sums[row][v], column", "up = plus_bias(tile.sums[row][v + 1], half + column"
RESULT = "silu(rounded<Y>(gate)) * rounded<Y>(up)"
FAULTS = {
    "gate and up change places": (RESULT, "silu(rounded<Y>(up)) * rounded<Y>(gate)"),
    "no activation": (RESULT, "gate * up"),
    "the bias of up is that of gate": (UP, UP.replace("half + ", "")),
    "the bias of gate is that of up": (GATE, GATE.replace("column", "half + column")),
    "the tail is not written": ("std::max<int64_t>(0, count)", "0"),
    "panels overlap": ("return (panel + v / 2) * LANES", "return panel * LANES"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    assert_noticed("gated_linear", linear, "_gemm", "gemm.h", FAULTS[fault], tmp_path)
