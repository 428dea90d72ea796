"""A product with the norm in front of it and the rotation behind it."""

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

from kernels.cpu import linear, norm_linear

DTYPES = [torch.float32, torch.bfloat16]
ROWS = [1, 5, 193, 2000]
"""2,000 rows are cut into rows by two threads, in blocks of 192; fewer into panels."""


def drawn(rows: int, columns: int, dtype: torch.dtype, width: int = 96) -> list[Tensor]:
    shapes = (rows, width), (rows, width), (width,), (columns, width), (columns,)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def angles(rows: int, half: int) -> tuple[Tensor, Tensor]:
    angle = torch.rand(rows, half) * 6
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("dtype", [*DTYPES, "bf16 in fp32"], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_one_pass_gives_the_bits_of_three(rows: int, dtype: torch.dtype | str) -> None:
    kind = dtype if isinstance(dtype, torch.dtype) else torch.float32
    x, residual, norm, weight, bias = drawn(rows, 5 * 32, kind)
    weight = weight if isinstance(dtype, torch.dtype) else weight.bfloat16().float()
    plain, gated = ops.pack_weight(weight), ops.pack_weight(weight, gated=True)
    cos, sin = angles(rows, 16)
    for stream in (residual, None):
        hidden, total = ops.rms_norm(x, norm, 1e-5), x
        if stream is not None:
            hidden, total = ops.fused_add_rms_norm(x, stream, norm, 1e-5)
        product = ops.linear(hidden, plain, bias)
        for packed in (plain, gated):
            found = ops.norm_linear(x, stream, norm, 1e-5, packed, bias)
            assert torch.equal(found[0], product) and torch.equal(found[1], total)
        activated, _ = ops.norm_linear(x, stream, norm, 1e-5, gated, bias, activated=True)
        assert torch.equal(activated, ops.gated_linear(hidden, gated, bias))
        rotated, _ = ops.norm_linear(x, stream, norm, 1e-5, plain, bias, rotary=(cos, sin, 3, 32))
        heads = ops.rotary_embedding(product.view(rows, 5, 32)[:, :3], cos, sin)
        assert torch.equal(rotated, torch.cat((heads.flatten(1), product[:, 96:]), dim=1))


@pytest.mark.parametrize("columns", [40, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_is_the_same_alone_and_in_a_batch_for_all_threads(dtype: torch.dtype, columns: int) -> None:
    x, residual, norm, weight, _ = drawn(230, columns, dtype, width=2048)  # rows 4 and 8 KiB apart
    packed, (cos, sin) = ops.pack_weight(weight), angles(230, 4)

    def compute(rows: slice = slice(None)) -> Tensor:
        rotary = (cos[rows], sin[rows], 4, 8)
        return torch.cat(
            ops.norm_linear(x[rows], residual[rows], norm, 1e-6, packed, None, False, rotary), dim=1
        )

    together = same_with_any_number_of_threads(compute)
    for row in range(0, 230, 23):
        assert torch.equal(compute(slice(row, row + 1)), together[row : row + 1])


def test_what_the_kernel_does_not_take_is_computed_by_the_reference() -> None:
    x, residual, norm, weight, _ = drawn(3, 40, torch.float32)
    plain = linear.pack_weight(weight)
    unsupported = norm_linear.unsupported_norm_linear
    assert unsupported(x, None, norm, 1e-5, plain, activated=True) == (
        "the weight was packed without gated=True"
    )
    assert "supported with this weight" in str(unsupported(x.half(), None, norm, 1e-5, plain))
    assert "dtypes bfloat16, float32" in str(unsupported(x, residual.bfloat16(), norm, 1e-5, plain))
    cos, sin = angles(3, 4)
    assert "supported: float32" in str(
        unsupported(x, None, norm, 1e-5, plain, rotary=(cos.double(), sin.double(), 2, 8))
    )
    found, total = ops.norm_linear(x, residual, norm, 1e-5, weight)
    torch.testing.assert_close(found, ops.linear(ops.rms_norm(x + residual, norm, 1e-5), weight))
    assert torch.equal(total, x + residual)


def test_a_weight_of_one_layout_does_not_choose_the_kernel_for_another() -> None:
    x, residual, norm, weight, _ = drawn(5, 80, torch.float32)
    hidden = ops.rms_norm(x + residual, norm, 1e-5)
    for gated in (True, False, True):
        packed = ops.pack_weight(weight, gated=gated)
        found, _ = ops.norm_linear(x, residual, norm, 1e-5, packed, activated=True)
        for expected in (ops.silu_and_mul(ops.linear(hidden, packed)), ops.gated_linear(hidden, packed)):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)  # products of numbers about 10


@pytest.mark.parametrize("rotary_of", ["too many heads", "too many angles", "too few rows", "activated"])
def test_heads_that_do_not_fit_are_refused(rotary_of: str) -> None:
    x, residual, norm, weight, _ = drawn(5, 64, torch.float32)
    packed = ops.pack_weight(weight, gated=rotary_of == "activated")
    heads, half, rows = 2, 16, 5
    if rotary_of == "too many heads":
        heads = 3
    if rotary_of == "too many angles":
        half = 17
    if rotary_of == "too few rows":
        rows = 4
    with pytest.raises(ValueError, match=f"{heads} heads of 32 .*do not fit"):
        rotary = (*angles(rows, half), heads, 32)
        ops.norm_linear(x, residual, norm, 1e-5, packed, None, rotary_of == "activated", rotary)


def test_no_rows() -> None:
    x, residual, norm, weight, _ = drawn(0, 64, torch.float32)
    found, total = ops.norm_linear(
        x, residual, norm, 1e-5, ops.pack_weight(weight), rotary=(*angles(0, 8), 2, 16)
    )
    assert found.shape == (0, 64) and total.shape == (0, 96)


FAULTS = {
    "no residual": (
        "norm.h",
        "add_residual(from, residual + row * residual_stride",
        "add_residual(from, from",
    ),
    "the total goes to the first row": ("norm.h", "total + row * size", "total + 0 * size"),
    "rows of a block get the norm of another row": (
        "norm.h",
        "(row - begin) * y_stride",
        "(end - 1 - row) * y_stride",
    ),
    "one head less is rotated": ("norm_gemm.h", "head < heads", "head < heads - 1"),
    "heads overlap": ("norm_gemm.h", "head * head_dim", "head * half"),
    "every row has the first one's angle": ("norm_gemm.h", "cos + row * cos_stride", "cos + 0 * cos_stride"),
    "blocks write to the first rows": ("norm_gemm.h", "p.y + first * p.y_stride", "p.y"),
    "few rows are not rotated": ("norm_gemm.h", "rotary.rows(begin, end, p.y", "rotary.rows(end, end, p.y"),
    "many rows are not rotated": (
        "norm_gemm.h",
        "rotary.rows(first, last, p.y",
        "rotary.rows(last, last, p.y",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    source, right, wrong = FAULTS[fault]
    args = ("norm_linear", norm_linear, "_norm_gemm", source, (right, wrong), tmp_path)
    assert_noticed(*args, main="gemm.cpp")
