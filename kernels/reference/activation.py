"""The gated activation of Llama's feed-forward layer (SwiGLU, Shazeer 2020), alone and behind its product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from kernels.reference.linear import linear
from kernels.reference.precision import wide

if TYPE_CHECKING:
    from kernels.cpu.linear import PackedPairs, PackedWeight


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = wide(x).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def gated_linear(
    x: Tensor, weight: Tensor | PackedWeight | PackedPairs, bias: Tensor | None = None
) -> Tensor:
    return silu_and_mul(linear(x, weight, bias))
