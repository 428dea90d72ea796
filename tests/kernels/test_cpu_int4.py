"""4-bit products in C++ against the reference in float64, for every shape that its loops tell apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu import build
from kernels.reference import int4 as reference
from kernels.reference.nibbles import unpack_int4

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import int4
from tests.kernels.cpu_constants import around
from tests.kernels.cpu_mutants import faulty, same_with_any_number_of_threads

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
Weights = tuple[Tensor, Tensor, Tensor, int]


def weights(rows: int, columns: int, group_size: int, scale_dtype: torch.dtype = torch.float32) -> Weights:
    """Every nibble and every zero point occurs; the tensors are views with room between their rows."""
    generator = torch.Generator().manual_seed(rows + columns + group_size)
    groups = columns // group_size
    qweight = torch.randint(0, 256, (rows, columns // 2 + 5), generator=generator, dtype=torch.uint8)
    scale = torch.rand(rows, groups + 3, generator=generator).add(0.1).to(scale_dtype)
    zero = torch.randint(0, 16, (rows, groups + 2), generator=generator, dtype=torch.uint8)
    return qweight[:, : columns // 2], scale[:, :groups], zero[:, :groups], group_size


def tokens(count: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[count, columns], the middle of a wider matrix."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, columns + 16, generator=generator).to(dtype)[:, 8 : 8 + columns]


def assert_is_the_product(x: Tensor, w: Weights) -> None:
    found = int4.int4_linear(x, *w)
    expected = reference.int4_linear(x.double(), *w)
    assert found.dtype == x.dtype and found.shape == expected.shape
    assert ((found - expected).abs() <= TOLERANCE[x.dtype] * magnitude(x, w).clamp_min(1)).all()


def magnitude(x: Tensor, w: Weights) -> Tensor:
    """Sum of the absolute values that are added up: (nibble - 8) and (8 - zero) are multiplied apart."""
    qweight, scale, zero, group_size = w
    nibbles = reference.dequantise_int4(qweight, scale.double(), torch.full_like(zero, 8), group_size).abs()
    zeros = scale.double() * (8 - zero.double()).abs()
    return x.double().abs() @ (nibbles + zeros.repeat_interleave(group_size, 1)).T


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 12, 13, 16, 63, 64, 65, 131])
@pytest.mark.parametrize("rows", [1, 4, 67])
def test_any_number_of_tokens_and_rows(count: int, rows: int) -> None:
    assert_is_the_product(tokens(count, 256), weights(rows, 256, 128))


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize(
    ("columns", "group_size"),
    [
        (2, 2),
        (32, 2),
        (30, 6),
        (64, 32),
        (192, 96),
        (130, 130),
        (1024, 64),
        (1056, 32),
        (2240, 448),
        (4100, 4100),
    ],
)
def test_any_group_size_that_is_even_and_divides_the_columns(
    columns: int, group_size: int, count: int
) -> None:
    assert_is_the_product(tokens(count, columns), weights(9, columns, group_size))


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("scale_dtype", TOLERANCE)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_activations_and_scales_of_any_float_type(
    dtype: torch.dtype, scale_dtype: torch.dtype, count: int
) -> None:
    assert_is_the_product(tokens(count, 384, dtype), weights(37, 384, 64, scale_dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_matrix_large_enough_for_all_threads(dtype: torch.dtype) -> None:
    """fp16 rows are converted first."""
    w = weights(70, 1536, 128)
    for count in (1, 11, 700):
        x = tokens(count, 1536, dtype)
        found = same_with_any_number_of_threads(lambda x=x: int4.int4_linear(x, *w))
        assert torch.equal(int4.int4_linear(x[-1:], *w), found[-1:])
        assert_is_the_product(x, w)


@pytest.mark.parametrize("count", around("quantised.h", "ROWS_IN_SCRATCH"))
def test_rows_beyond_those_that_are_converted_at_once(count: int) -> None:
    assert_is_the_product(tokens(count, 20, torch.float16), weights(3, 20, 10))


@pytest.mark.parametrize("columns", [1020, 1024, 2048])
def test_converted_rows_that_would_lie_4_kib_apart(columns: int) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert_is_the_product(tokens(7, columns, dtype), weights(5, columns, columns // 2))


@pytest.mark.parametrize(("columns", "group_size"), [(256, 128), (2100, 70)])
def test_a_token_gets_the_same_numbers_alone_and_in_any_batch(columns: int, group_size: int) -> None:
    x, w = tokens(150, columns), weights(71, columns, group_size)
    together = int4.int4_linear(x, *w)
    for first, last in [(0, 1), (149, 150), (3, 5), (60, 68), (20, 29), (10, 23), (50, 130)]:
        assert torch.equal(int4.int4_linear(x[first:last], *w), together[first:last]), (first, last)


def test_nan_stays_in_its_row() -> None:
    for count in (3, 40):
        x, w = tokens(count, 256).clone(), weights(33, 256, 64)
        expected = int4.int4_linear(x, *w)
        x[1, 7] = torch.nan
        found = int4.int4_linear(x, *w)
        assert found[1].isnan().all()
        others = [row for row in range(count) if row != 1]
        assert torch.equal(found[others], expected[others])


def test_what_is_not_supported_is_named() -> None:
    x, (qweight, scale, zero, group_size) = tokens(1, 64), weights(3, 64, 32)
    assert int4.unsupported_int4_linear(x, qweight, scale, zero, group_size) is None
    assert "float64" in str(int4.unsupported_int4_linear(x.double(), qweight, scale, zero, group_size))
    assert "scale" in str(int4.unsupported_int4_linear(x, qweight, scale.double(), zero, group_size))


# --- would the tests notice? -------------------------------------------------------------------------------

MUTATIONS = {
    "odd depths of another word": ("16 * (depth % 2)", "12 * (depth % 2)"),
    "the zero point forgotten": ("p.x_sums[(first + row) * p.groups + group] * offset", "0 * offset"),
    "the first group's scale for all": ("float(p.scales + at *", "float(p.scales + (at - group * PANEL) *"),
    "a group's last depth dropped": ("group_size, group_size, to)", "group_size, group_size - 1, to)"),
    "only the last group counts": ("scale, totals[row][v])", "scale, vfloat{})"),
    "rows off by one": ("p.y.write(p.first_row + first,", "p.y.write(p.first_row,"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_faulty_kernel_is_noticed(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = faulty("int4.cpp", *MUTATIONS[fault], tmp_path)["int4_linear"]
    mutant.argtypes = int4._int4_linear.argtypes
    monkeypatch.setattr(int4, "_int4_linear", mutant)
    with pytest.raises(AssertionError):
        for count in (4, 20):
            assert_is_the_product(tokens(count, 2100), weights(9, 2100, 70))


def test_subnormal_numbers_are_the_same_alone_and_where_rows_are_moved_apart() -> None:
    """Rows of 4 KiB are moved from five rows on."""
    x = torch.full((5, 2048), 1e-38).bfloat16()
    packed = int4.pack_int4_weight(*weights(40, 2048, 128))
    together = int4.int4_linear(x, packed, out_dtype=torch.float32)
    assert torch.equal(int4.int4_linear(x[:1], packed, out_dtype=torch.float32), together[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_nibble_is_decoded_exactly_beside_every_other(dtype: torch.dtype) -> None:
    """Rows of the identity return the weights: a wrong entry of a look-up table hides in a sum of many products."""
    nibbles = torch.arange(256, dtype=torch.uint8).repeat(32).view(256, 32)
    nibbles = nibbles ^ torch.arange(256, dtype=torch.uint8)[:, None]
    scale, zero = torch.full((256, 1), 0.5), torch.full((256, 1), 3, dtype=torch.uint8)
    got = int4.int4_linear(torch.eye(64, dtype=dtype), nibbles, scale, zero, 64)
    wanted = (unpack_int4(nibbles).float() - 3) * 0.5
    assert torch.equal(got.float(), wanted.T)
