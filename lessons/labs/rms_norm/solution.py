"""Lab triton-rms-norm: the residual added, then RMSNorm; one program per row.

The seam is fused_add_rms_norm of kernels/ops.py; a transformer layer calls it twice (Zhang and Sennrich 2019,
1910.07467). vLLM: csrc/layernorm_kernels.cu.

    total = x + residual                                       [rows, hidden], what the next layer adds to
    out   = total / sqrt(mean(total^2) + eps) * weight         [rows, hidden], mean over the row

Tensors are fp32 and contiguous. hidden is any size >= 1, not only a power of two: tl.arange needs a power of two, and
what lies beyond the row is masked. Numbers may be as large as 1e4. Errors up to 1e-5 of the largest number of a row are
accepted. The checks run it in Triton's interpreter.

Mask every load and store that would leave its tensor; a lane that a mask hides has no value unless `other` gives one.
Kernels store each number that a function returns or changes: torch only makes the tensors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rms_norm(x, residual, weight, out, total, hidden, eps, BLOCK: tl.constexpr):
    """Do one row. BLOCK: a power of two, at least hidden."""
    row = tl.program_id(0)
    # given up to here
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    at = row.to(tl.int64) * hidden + column
    both = tl.load(x + at, mask=inside, other=0.0) + tl.load(residual + at, mask=inside, other=0.0)
    tl.store(total + at, both, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(both * both, axis=0) / hidden + eps)
    tl.store(out + at, both * scale * tl.load(weight + column, mask=inside, other=0.0), mask=inside)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (out, total). x, residual [rows, hidden], weight [hidden]."""
    rows, hidden = x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(hidden)
    _add_rms_norm[(rows,)](x, residual, weight, out, total, hidden, eps, BLOCK=block)
    return out, total
