"""The grouped product, interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.check.run import check
from kernels.reference.moe import grouped_linear as reference
from kernels.triton_ops.moe import grouped_linear, unsupported_grouped_linear
from tests.kernels.triton.mutants import assert_noticed

FAULTS = {
    "the matrix of another group": ("group.to(tl.int64) * group_stride", "(group % 2) * group_stride"),
    "pairs of rows are one": ("x + t[:, None] * x_stride", "x + (t - t % 2)[:, None] * x_stride"),
    "the weights of a column later": ("n[:, None] * weight_stride", "(n ^ 1)[:, None] * weight_stride"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_every_case_agrees_with_the_reference_and_every_row_with_itself_alone(dtype: torch.dtype) -> None:
    report = check("grouped_linear", "triton", dtype=dtype)
    assert report.ok, report


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    assert_noticed("grouped_linear", "moe.py", *FAULTS[fault], tmp_path)


@pytest.mark.parametrize("sizes", [[16, 16, 0], [15, 17, 1], [0, 0, 33], [0, 0, 0]], ids=str)
def test_groups_around_the_size_of_a_tile_and_zeros_for_rows_of_no_group(sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(36, 32, generator=generator)
    weight = torch.randn(3, 20, 32, generator=generator)
    ends = torch.tensor(sizes).cumsum(0).int()
    out = grouped_linear(x, weight, ends)
    torch.testing.assert_close(out, reference(x, weight, ends))
    assert not out[sum(sizes) :].any()


def test_mixed_types_are_refused_by_name() -> None:
    x = torch.zeros(1, 16)
    assert "one type" in (unsupported_grouped_linear(x, x.half()[None], torch.ones(1)) or "")
