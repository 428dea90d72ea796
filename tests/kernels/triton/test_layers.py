"""Norm, rotary embedding and activation, interpreted, against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.check.run import check
from kernels.triton_ops.norm import fused_add_rms_norm

OPS = ("rms_norm", "fused_add_rms_norm", "rotary_embedding", "silu_and_mul")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("op", OPS)
def test_every_case_agrees_with_the_reference_and_every_row_with_itself_alone(
    op: str, dtype: torch.dtype
) -> None:
    report = check(op, "triton", dtype=dtype)
    assert report.ok, report


def test_the_normalised_row_is_that_of_the_rounded_sum() -> None:
    """In fp16 2048 + 1 is 2048. A kernel that normalises 2049 disagrees with the residual that the next layer gets."""
    x, residual = torch.ones(1, 64).half(), torch.ones(1, 64).half()
    residual[:, :32] = 2048
    normed, total = fused_add_rms_norm(x, residual, torch.ones(64), 0.0)
    wanted = total.double() / total.double().square().mean().sqrt()
    assert total[0, 0] == 2048
    torch.testing.assert_close(normed.double(), wanted, rtol=1e-6, atol=0)
