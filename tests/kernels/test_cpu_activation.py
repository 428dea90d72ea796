"""SwiGLU's activation in C++."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.cpu import build
from tests.kernels.cpu_constants import constant
from tests.kernels.cpu_mutants import FLOATS, assert_noticed, same_with_any_number_of_threads

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import activation


def test_every_width_has_its_tail() -> None:
    for width in range(1, 70):
        x = torch.randn(2, 2 * width) * 5
        gate, up = x.double().split(width, dim=1)
        expected = (torch.nn.functional.silu(gate) * up).float()
        torch.testing.assert_close(activation.silu_and_mul(x), expected, rtol=1e-6, atol=1e-7)


def test_silu_is_right_to_a_few_units_in_the_last_place_for_every_size_of_gate() -> None:
    gate = torch.cat([torch.logspace(-40, 37, 20000), torch.linspace(-90, 90, 20001)])
    gate = torch.cat([gate, -gate])
    found = activation.silu_and_mul(torch.stack((gate, torch.ones_like(gate)), 0).reshape(1, -1))[0]
    expected = torch.nn.functional.silu(gate.double())
    error = (found.double() - expected).abs()
    assert (error <= 4 * torch.finfo(torch.float32).eps * expected.abs() + 2e-36).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_is_the_same_alone_and_in_a_batch_for_all_threads(dtype: torch.dtype) -> None:
    x = torch.randn(90, 700).to(dtype)[:, 30:670]  # strided
    assert x.numel() // 2 > constant("activation.cpp", "WORTH_THREADS")
    together = same_with_any_number_of_threads(lambda: activation.silu_and_mul(x))
    for row in range(90):
        assert torch.equal(activation.silu_and_mul(x[row : row + 1]), together[row : row + 1])


def test_a_nan_stays_in_its_element() -> None:
    x = torch.randn(5, 64)
    expected = activation.silu_and_mul(x)
    x[1, 3], x[2, 32 + 9] = torch.nan, torch.nan
    found = activation.silu_and_mul(x)
    assert found[1, 3].isnan() and found[2, 9].isnan()
    found[1, 3], found[2, 9] = expected[1, 3], expected[2, 9]
    assert torch.equal(found, expected)


def test_no_rows() -> None:
    assert activation.silu_and_mul(torch.empty(0, 64)).shape == (0, 32)


FAULTS = {
    "gate and up change places": ("silu_and_mul_row(gate, gate + size,", "silu_and_mul_row(gate + size, gate,"),
    "the tail is not written": ("load_first(up + i, size - i), size - i);", "load_first(up + i, size - i), 0);"),
    "rows lie densely": ("static_cast<const T*>(x) + row * stride", "static_cast<const T*>(x) + row * 2 * size"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    assert_noticed("silu_and_mul", activation, "_silu_and_mul", "activation.cpp", FAULTS[fault], tmp_path)


HEADER_FAULTS = {
    "e^-x where x is negative": ("x * select(x < 0.0f, e, splat(1.0f))", "x * select(x < 0.0f, 1 / e, splat(1.0f))"),
    "a sigmoid, not x times it": ("return x * select(", "return select("),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", HEADER_FAULTS)
def test_the_check_notices_in_the_header(fault: str, tmp_path: Path) -> None:
    given = ("silu_and_mul", activation, "_silu_and_mul", "activation.h", HEADER_FAULTS[fault], tmp_path)
    assert_noticed(*given)
