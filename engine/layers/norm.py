"""RMSNorm as a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.layers.linear import empty_parameter
from kernels import ops


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, with or without a residual to add first."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = empty_parameter(size, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual): the second goes on as the new residual stream."""
        return ops.fused_add_rms_norm(x, residual, self.weight, self.eps)
