"""The gated activation of Llama's feed-forward layer (SwiGLU, Shazeer 2020)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kernels.reference.precision import wide


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = wide(x).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)
