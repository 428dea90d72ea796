"""Rotary position embedding (Su et al. 2021), in the half-split layout of GPT-NeoX and Llama."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.precision import wide


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotary_dim = 2 * cos.shape[-1]
    first, second = wide(x[..., :rotary_dim]).chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((rotated.to(x.dtype), x[..., rotary_dim:]), dim=-1)
