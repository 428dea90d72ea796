"""Solution of lab triton-rms-norm. The docstrings of the stub state the contract."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rms_norm(x, residual, weight, out, total, hidden, eps, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    at = tl.program_id(0).to(tl.int64) * hidden + column
    both = tl.load(x + at, mask=inside, other=0.0) + tl.load(residual + at, mask=inside, other=0.0)
    tl.store(total + at, both, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(both * both, axis=0) / hidden + eps)
    tl.store(out + at, both * scale * tl.load(weight + column, mask=inside, other=0.0), mask=inside)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows, hidden = x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(hidden)
    _add_rms_norm[(rows,)](x, residual, weight, out, total, hidden, eps, BLOCK=block)
    return out, total
