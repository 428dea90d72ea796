"""Rotary position embedding in C++."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels import ops
from kernels.cpu import build
from kernels.reference import rotary as reference
from tests.kernels.cpu_constants import constant
from tests.kernels.cpu_mutants import FLOATS, assert_noticed, same_with_any_number_of_threads

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import embedding, rotary


def angles(tokens: int, half: int) -> tuple[Tensor, Tensor]:
    turned = torch.rand(tokens, half) * 100
    return turned.cos(), turned.sin()


def test_every_even_part_of_a_head_can_be_rotated() -> None:
    for head_dim in (2, 6, 30, 34, 80):
        for rotary_dim in range(2, head_dim + 1, 2):
            x, (cos, sin) = torch.randn(3, 2, head_dim), angles(3, rotary_dim // 2)
            expected = reference.rotary_embedding(x.double(), cos.double(), sin.double()).float()
            found = rotary.rotary_embedding(x, cos, sin)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
            assert torch.equal(found[..., rotary_dim:], x[..., rotary_dim:])


def test_a_token_is_the_same_alone_and_in_a_batch_for_all_threads() -> None:
    fused, (cos, sin) = torch.randn(600, 12, 32), angles(600, 16)
    x = fused[:, 2:8]  # strided
    assert x.numel() > constant("rotary.h", "ROTARY_WORTH_THREADS")
    together = same_with_any_number_of_threads(lambda: rotary.rotary_embedding(x, cos, sin))
    for token in range(0, 600, 71):
        one = slice(token, token + 1)
        assert torch.equal(rotary.rotary_embedding(x[one], cos[one], sin[one]), together[one])
    assert torch.equal(rotary.rotary_embedding(x.contiguous(), cos, sin), together)


@pytest.mark.parametrize("half", [1, 16, 64])
def test_bf16_results_round_as_in_torch_but_for_subnormal_numbers(half: int) -> None:
    """A head of ones, then zeros, becomes cos, then sin. `half` 1: number by number, 64: in vectors."""
    words = torch.randint(-(2**31), 2**31, (200, 2, half), dtype=torch.int64).to(torch.int32)
    words[::3] &= -65536 | 0x8000  # ties
    words[1::3] &= -(2**31) | 0x00FFFFFF  # subnormal numbers and the smallest normal ones
    angles = words.view(torch.float32)
    angles[~angles.isfinite()] = 0.5
    x = torch.cat((torch.ones(200, 1, half), torch.zeros(200, 1, half)), dim=2).bfloat16()
    expected = angles.bfloat16()
    expected[angles.abs() < torch.finfo(torch.float32).tiny] *= 0
    found = rotary.rotary_embedding(x, angles[:, 0], angles[:, 1])
    assert torch.equal(found.view(200, 2, half), expected)
    assert expected.isfinite().float().mean() > 0.99 and (expected == 0).any()


def test_angles_may_be_columns_of_one_table() -> None:
    """Tables that hold cos and sin side by side are common: half of a row each."""
    x, (cos, sin) = torch.randn(5, 2, 64), angles(5, 32)
    table = torch.cat((cos, sin), dim=1)
    found = ops.rotary_embedding(x, table[:, :32], table[:, 32:])
    assert torch.equal(found, ops.rotary_embedding(x, cos, sin))


def test_a_nan_stays_in_its_head() -> None:
    x, (cos, sin) = torch.randn(4, 3, 32), angles(4, 16)
    expected = rotary.rotary_embedding(x, cos, sin)
    x[1, 2] = torch.nan
    found = rotary.rotary_embedding(x, cos, sin)
    assert found[1, 2].isnan().all()
    found[1, 2] = expected[1, 2]
    assert torch.equal(found, expected)


def test_no_tokens() -> None:
    cos, sin = angles(0, 16)
    assert rotary.rotary_embedding(torch.empty(0, 4, 32), cos, sin).shape == (0, 4, 32)


FAULTS = {
    "turned the other way": ("first * c - second * s", "first * c + second * s"),
    "both signs reversed": ("second * c + first * s", "second * c - first * s"),
    "the tail turned the other way": (
        "first * cos[i] - second * sin[i]",
        "first * cos[i] + second * sin[i]",
    ),
    "pairs of neighbours": ("second = load(x + half + i)", "second = load(x + i + 1)"),
    "what is not rotated is lost": ("for (i = 2 * half; i < head_dim; i++) y[i] = x[i];", ""),
    "all tokens at the first position": ("cos + token * cos_stride", "cos"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_notices(fault: str, tmp_path: Path) -> None:
    settings = {"only": "*of 80*"} if "tail" in fault or "lost" in fault else {}
    source = "rotary.cpp" if "all tokens" in fault else "rotary.h"
    args = ("rotary_embedding", rotary, "_rotary_embedding", source, FAULTS[fault], tmp_path)
    assert_noticed(*args, **settings)


# --- looking up rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int8], ids=str)
def test_rows_of_a_table_are_copied_as_they_are(dtype: torch.dtype) -> None:
    table = (torch.randn(50, 37) * 50).to(dtype)
    for ids in ([], [7], [49, 0, 0, 13]):
        assert torch.equal(embedding.embedding(table, torch.tensor(ids, dtype=torch.int64)), table[ids])


def test_rows_of_a_wider_table_are_found_whatever_came_before() -> None:
    """The choice of implementation is remembered by type: strides must not matter to it."""
    table, ids = torch.randn(9, 64), torch.tensor([8, 0, 3])
    for part in (table, table[:, 16:48], table[::2]):
        rows = ids // 2 if len(part) < 9 else ids
        assert torch.equal(ops.embedding(part, rows), part[rows])


def test_more_rows_than_one_thread_copies() -> None:
    rows = constant("embedding.cpp", "WORTH_THREADS") // (37 * 4) + 5
    table, ids = torch.randn(50, 37), torch.randint(0, 50, (rows,))
    assert torch.equal(same_with_any_number_of_threads(lambda: embedding.embedding(table, ids)), table[ids])


def test_a_table_of_more_than_2_gib_is_read_to_its_end() -> None:
    """Only the pages of the memory that are written exist."""
    table = torch.empty(2**31 // 256 + 5, 64)
    last, row = len(table) - 1, torch.randn(64)
    table[last] = row
    assert torch.equal(embedding.embedding(table, torch.tensor([last])), row[None])
