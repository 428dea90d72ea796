"""The normalised row of a sum, interpreted."""

from __future__ import annotations

import torch

from kernels.triton_ops.norm import fused_add_rms_norm


def test_the_normalised_row_is_that_of_the_rounded_sum() -> None:
    """In fp16 2048 + 1 is 2048. A kernel that normalises 2049 disagrees with the residual that the next layer gets."""
    x, residual = torch.ones(1, 64).half(), torch.ones(1, 64).half()
    residual[:, :32] = 2048
    normed, total = fused_add_rms_norm(x, residual, torch.ones(64), 0.0)
    wanted = total.double() / total.double().square().mean().sqrt()
    assert total[0, 0] == 2048
    torch.testing.assert_close(normed.double(), wanted, rtol=1e-6, atol=0)
