"""RMSNorm as a module, alone and in front of a projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.layers.linear import GatedLinear, Linear, empty_parameter
from kernels import ops


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, with or without a residual to add first."""

    def __init__(self, size: int, eps: float, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = empty_parameter(size, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual): the second goes on as the residual stream, which begins as x."""
        if residual is None:
            return self(x), x
        return ops.fused_add_rms_norm(x, residual, self.weight, self.eps)

    @staticmethod
    def fuses_with(layer: Linear) -> bool:
        """Whether `then` computes norm and layer in one pass."""
        return layer.is_packed and ops.fuses("norm_linear")

    def then(
        self,
        layer: Linear,
        x: Tensor,
        residual: Tensor | None,
        *,
        rotary: tuple[Tensor, Tensor, int, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(layer(norm(x + residual)), x + residual): [T, in] -> [T, out], [T, in]; a `GatedLinear` is activated.

        rotary: heads to rotate in the same pass, see `ops.norm_linear`; only for layers that the norm `fuses_with`.
        """
        if self.fuses_with(layer):
            product = layer.weight, layer.bias, isinstance(layer, GatedLinear)
            return ops.norm_linear(x, residual, self.weight, self.eps, *product, rotary)
        assert rotary is None
        hidden, residual = self.add_and_norm(x, residual)
        return layer.activated(hidden) if isinstance(layer, GatedLinear) else layer(hidden), residual
