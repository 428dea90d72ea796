"""RMSNorm in C++: right for every width, alone as in a batch, and it writes to nothing but its results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.cpu import build
from kernels.reference import norm as reference
from tests.kernels.cpu_constants import constant
from tests.kernels.cpu_mutants import FLOATS, assert_noticed, same_with_any_number_of_threads

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import norm

OPS = ("rms_norm", "fused_add_rms_norm")


def test_every_width_has_its_tail() -> None:
    for width in range(1, 70):
        x, residual, weight = torch.randn(3, width), torch.randn(3, width), torch.randn(width)
        expected = reference.rms_norm(x.double(), weight.double(), 1e-6).float()
        torch.testing.assert_close(norm.rms_norm(x, weight, 1e-6), expected, rtol=2e-6, atol=1e-6)
        normed, total = norm.fused_add_rms_norm(x, residual, weight, 1e-6)
        assert torch.equal(total, x + residual), width
        assert torch.equal(normed, norm.rms_norm(total, weight, 1e-6)), width


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_residual_is_not_mutated_even_where_it_is_the_input(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 96).to(dtype), torch.randn(96).to(dtype)
    before = x.clone()
    normed, total = norm.fused_add_rms_norm(x, x, weight, 1e-6)
    assert torch.equal(x, before) and torch.equal(total, before + before)
    assert len({t.untyped_storage().data_ptr() for t in (x, normed, total)}) == 3


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_is_the_same_alone_and_in_a_batch_for_all_threads(dtype: torch.dtype) -> None:
    x = torch.randn(2 * constant("norm.h", "NORM_WORTH_THREADS") // 256, 300).to(dtype)[
        :, 11:267
    ]  # strided, and worth several threads
    residual, weight = torch.randn(x.shape).to(dtype), torch.randn(256).to(dtype)
    together = same_with_any_number_of_threads(lambda: norm.rms_norm(x, weight, 1e-6))
    added = same_with_any_number_of_threads(lambda: norm.fused_add_rms_norm(x, residual, weight, 1e-6)[0])
    for row in range(0, len(x), 37):
        one = slice(row, row + 1)
        assert torch.equal(norm.rms_norm(x[one], weight, 1e-6), together[one])
        assert torch.equal(norm.fused_add_rms_norm(x[one], residual[one], weight, 1e-6)[0], added[one])


def test_a_nan_or_an_infinity_stays_in_its_row() -> None:
    x, weight = torch.randn(40, 100), torch.randn(100)
    expected = norm.rms_norm(x, weight, 1e-6)
    x[3, 99], x[4, 0], x[5] = torch.nan, torch.inf, torch.nan
    found = norm.rms_norm(x, weight, 1e-6)
    clean = [row for row in range(40) if row not in (3, 4, 5)]
    assert torch.equal(found[clean], expected[clean])
    assert found[3].isnan().all() and found[5].isnan().all() and found[4, 0].isnan()


def test_heads_inside_a_fused_tensor_are_normalised_where_they_lie() -> None:
    fused, weight = torch.randn(7, 10 * 48), torch.randn(48)
    heads = fused.view(7, 10, 48)[:, 2:6]
    expected = torch.stack([norm.rms_norm(heads[:, h].contiguous(), weight, 1e-6) for h in range(4)], dim=1)
    assert torch.equal(norm.rms_norm(heads, weight, 1e-6), expected)


def test_no_rows() -> None:
    empty, weight = torch.empty(0, 64), torch.ones(64)
    assert norm.rms_norm(empty, weight, 1e-6).shape == (0, 64)
    assert [t.shape for t in norm.fused_add_rms_norm(empty, empty, weight, 1e-6)] == [(0, 64)] * 2


def test_mixed_types_are_left_to_the_reference() -> None:
    reason = norm.unsupported_rms_norm(torch.ones(1, 8).half(), torch.ones(8), 1e-6)
    assert reason == "dtypes float16, float32; supported: float32, float16 or bfloat16, the same for all"


FAULTS = {
    "no eps": ("norm.h", "/ size + eps", "/ size"),
    "the tail is not summed": ("norm.h", "squares + rest * rest", "squares"),
    "the tail is not weighted": ("norm.h", " * to_float(weight[i]));", ");"),
    "the mean of one more": ("norm.h", "/ size + eps", "/ (size + 1) + eps"),
    "no scale": ("norm.h", "rounded<T>(load(x + i) * scale)", "rounded<T>(load(x + i))"),
    "rows lie densely": ("norm.cpp", "row / rows.inner * rows.outer_stride", "row / rows.inner * rows.size"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    source, right, wrong = FAULTS[fault]
    assert_noticed("rms_norm", norm, "_rms_norm", source, (right, wrong), tmp_path)


def test_the_check_notices_a_residual_that_is_left_out(tmp_path: Path) -> None:
    fault = ("load(one + i) + load(other + i)", "load(one + i)")
    assert_noticed("fused_add_rms_norm", norm, "_fused_add_rms_norm", "norm.h", fault, tmp_path)
