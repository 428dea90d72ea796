"""8-bit integer weights, one scale per output channel; activations are rounded row by row on the way in.

    x[t, k] ~ xq[t, k] * row_scale[t]        weight[n, k] ~ qweight[n, k] * scale[n]
    out[t, n] = (sum over k of xq * qweight) * row_scale[t] * scale[n]

The sum is over integers and therefore exact in any order. To which integer an activation is rounded is
part of the result: that is decided in fp32 even where x is float64.
Source: LLM.int8() (Dettmers et al. 2022) without outliers, SmoothQuant's dynamic per-token scheme.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.reference.precision import wide

if TYPE_CHECKING:
    from kernels.cpu.int8 import PackedInt8

INT8_MAX = 127


def int8_linear(
    x: Tensor,
    qweight: Tensor | PackedInt8,
    scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    if not isinstance(qweight, Tensor):
        qweight, scale = qweight.unpack()
    assert scale is not None
    rounded, row_scale = quantise_int8(x)
    # float64 holds every integer below 2**53: as exact as int32, and torch multiplies such matrices anywhere.
    sums = rounded.double() @ qweight.double().T
    precision = wide(x).dtype
    y = sums.to(precision) * row_scale[:, None].to(precision) * scale.to(precision)
    return y.to(out_dtype or x.dtype)


def quantise_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row of [N, K] with its own scale max|w| / 127: int8 [N, K], fp32 [N]. Zero rows have scale 0."""
    rows = weight.float()
    scale = rows.abs().amax(-1) / INT8_MAX
    steps = (rows / scale[:, None]).round().clamp(-INT8_MAX, INT8_MAX)
    return torch.where(scale[:, None] == 0, torch.zeros_like(steps), steps).to(torch.int8), scale


def dequantise_int8(qweight: Tensor, scale: Tensor) -> Tensor:
    """The matrix [N, K] in the precision of `scale`, at least fp32."""
    return qweight * wide(scale)[:, None]
