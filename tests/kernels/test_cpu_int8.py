"""int8 products in C++: bit for bit those of the reference, since the sums are integers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu import build
from kernels.reference import int8 as reference

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import int8
from tests.kernels.cpu_constants import around
from tests.kernels.cpu_mutants import faulty, same_with_any_number_of_threads

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def weights(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """All of -128 .. 127; a view with room between its rows."""
    generator = torch.Generator().manual_seed(rows + columns)
    qweight = torch.randint(-128, 128, (rows, columns + 7), generator=generator, dtype=torch.int8)
    return qweight[:, :columns], torch.rand(rows, generator=generator).add(0.1)


def tokens(count: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[count, columns], the middle of a wider matrix, rows of different magnitudes."""
    generator = torch.Generator().manual_seed(count)
    wide = torch.randn(count, columns + 16, generator=generator) * torch.rand(
        count, 1, generator=generator
    ).mul(9)
    return wide.to(dtype)[:, 8 : 8 + columns]


def assert_is_the_product(x: Tensor, w: tuple[Tensor, Tensor]) -> None:
    found = int8.int8_linear(x, *w)
    expected = reference.int8_linear(x, *w)
    assert found.dtype == expected.dtype
    assert torch.equal(found.nan_to_num(7.0, 7.0, 7.0), expected.nan_to_num(7.0, 7.0, 7.0))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 131])
@pytest.mark.parametrize("rows", [1, 4, 67])
def test_any_number_of_tokens_and_rows(count: int, rows: int) -> None:
    assert_is_the_product(tokens(count, 192), weights(rows, 192))


@pytest.mark.parametrize("columns", [1, 3, 15, 16, 63, 64, 65, 100, 127, 1000, 4096])
def test_any_number_of_columns(columns: int) -> None:
    """4096: rounded rows would lie 4 KiB apart and are moved."""
    for count in (1, 6):
        assert_is_the_product(tokens(count, columns), weights(9, columns))


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_of_any_float_type(dtype: torch.dtype) -> None:
    for count in (1, 9):
        assert_is_the_product(tokens(count, 320, dtype), weights(37, 320))


def test_a_matrix_large_enough_for_all_threads() -> None:
    for count in (1, 70, 520):
        x, w = tokens(count, 2048), weights(70 if count > 70 else 700, 2048)
        assert torch.equal(
            same_with_any_number_of_threads(lambda x=x, w=w: int8.int8_linear(x, *w)),
            reference.int8_linear(x, *w),
        )


@pytest.mark.parametrize("count", around("quantised.h", "ROWS_IN_SCRATCH"))
def test_rows_beyond_those_that_are_rounded_at_once(count: int) -> None:
    assert_is_the_product(tokens(count, 20), weights(3, 20))


def test_the_largest_sums_are_exact() -> None:
    columns = 60_000  # 127 * 128 * 60,000 is just under 2**30; with the offset of VNNI int32 wraps around
    for sign in (1.0, -1.0):
        x = torch.full((2, columns), sign)
        w = torch.full((5, columns), -128, dtype=torch.int8), torch.ones(5)
        assert_is_the_product(x, w)


def test_halves_are_rounded_to_even() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    w = torch.eye(8, dtype=torch.int8), torch.ones(8)
    assert int8.int8_linear(x, *w).tolist() == [[127.0, 0.0, 2.0, 2.0, 0.0, -2.0, -2.0, 126.0]]


def test_a_row_of_zeros_gives_zeros_and_a_tiny_one_is_not_lost() -> None:
    x = tokens(5, 96).clone()
    x[1] = 0
    x[2] *= 1e-37
    x[3] *= 1e-45 / x[3].abs().max()
    found = int8.int8_linear(x, *weights(11, 96))
    assert (found[1] == 0).all() and (found[2] != 0).any()
    assert_is_the_product(x, weights(11, 96))


@pytest.mark.parametrize("place", [0, 15, 16, 99])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_nan_and_infinity_stay_in_their_row(poison: float, place: int) -> None:
    x, w = tokens(9, 100).clone(), weights(20, 100)
    expected = int8.int8_linear(x, *w)
    x[4, place] = poison
    found = int8.int8_linear(x, *w)
    assert found[4].isnan().all()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(found[others], expected[others])


def test_what_is_not_supported_is_named() -> None:
    x, w = tokens(1, 64), weights(3, 64)
    assert int8.unsupported_int8_linear(x, *w) is None
    assert "float64" in str(int8.unsupported_int8_linear(x.double(), *w))


# --- would the tests notice? -------------------------------------------------------------------------------

MUTATIONS = {
    "the scale of the token forgotten": (" * p.x_scales[first + row] *", " * 1.0f *"),
    "the scale of other columns": (
        "load(p.scales + panel * PANEL + v * LANES)",
        "splat(p.scales[panel * PANEL])",
    ),
    "rounded down": ("splat(-127.0f)) + 12582912.0f", "splat(-127.0f)) - 0.5f + 12582912.0f"),
    "128 steps instead of 127": ("largest(largest_yet) / 127.0f", "largest(largest_yet) / 128.0f"),
    "the offset stays in": ("total * -uint32_t{X_OFFSET}", "total * uint32_t{0}"),
    "NaN is overlooked": ("nan |= at != at;", ""),
    "only the last vector is searched for NaN": ("nan |= at != at;", "nan = at != at;"),
    "the end of a row is not looked at": (
        "scale_of(numbers, width)",
        "scale_of(numbers, depth / LANES * LANES)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_faulty_kernel_is_noticed(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "the offset stays in" and "avx512_vnni" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("without VNNI there is no offset")
    mutant = faulty("int8.cpp", *MUTATIONS[fault], tmp_path)["int8_linear"]
    mutant.argtypes = int8._int8_linear.argtypes
    monkeypatch.setattr(int8, "_int8_linear", mutant)
    with pytest.raises(AssertionError):
        assert_is_the_product(tokens(20, 100), weights(9, 100))
        for place in (0, 99):
            test_nan_and_infinity_stay_in_their_row(torch.nan, place)
