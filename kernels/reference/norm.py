"""RMS normalisation (Zhang & Sennrich 2019) as Llama uses it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.precision import wide


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x32 = wide(x)
    normed = x32 * torch.rsqrt(x32.square().mean(dim=-1, keepdim=True) + eps)
    return normed.to(weight.dtype) * weight


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total
