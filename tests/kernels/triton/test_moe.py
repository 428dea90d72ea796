"""The grouped product, interpreted."""

from __future__ import annotations

import pytest
import torch

from kernels.reference.moe import grouped_linear as reference
from kernels.triton_ops.moe import grouped_linear, unsupported_grouped_linear


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
