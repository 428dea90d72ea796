"""A norm, the product behind it, and the rotation of its first heads: the way into attention and MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.reference.activation import gated_linear
from kernels.reference.linear import linear
from kernels.reference.norm import fused_add_rms_norm, rms_norm
from kernels.reference.rotary import rotary_embedding

if TYPE_CHECKING:
    from kernels.cpu.linear import PackedPairs, PackedWeight


def norm_linear(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor | PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    activated: bool = False,
    rotary: tuple[Tensor, Tensor, int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    if residual is None:
        hidden, total = rms_norm(x, norm_weight, eps), x
    else:
        hidden, total = fused_add_rms_norm(x, residual, norm_weight, eps)
    y = gated_linear(hidden, weight, bias) if activated else linear(hidden, weight, bias)
    if rotary is not None:
        cos, sin, heads, head_dim = rotary
        if activated or heads * head_dim > y.shape[1]:
            raise ValueError(
                f"{heads} heads of {head_dim} do not fit in {0 if activated else y.shape[1]} columns"
            )
        turned, rest = y.tensor_split((heads * head_dim,), dim=1)
        turned = rotary_embedding(turned.unflatten(1, (heads, head_dim)), cos, sin).flatten(1)
        y = torch.cat((turned, rest), dim=1)
    return y, total
