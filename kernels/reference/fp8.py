"""8-bit floating point weights (e4m3: 4 exponent, 3 mantissa bits, largest 448), one scale per output channel.

    out[t, n] = (sum over k of xq[t, k] * qweight[n, k]) * row_scale[t] * scale[n]

To which e4m3 number an activation is rounded is part of the result: that is decided in fp32 even where x
is float64. Source: FP8 Formats for Deep Learning (Micikevicius et al. 2022).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.precision import wide

FP8_MAX = 448.0


def fp8_linear(x: Tensor, qweight: Tensor, scale: Tensor, input_scale: Tensor | None = None) -> Tensor:
    if input_scale is None:
        rounded, row_scale = quantise_fp8(x)
    else:
        row_scale = input_scale.float().reshape(1).expand(len(x))
        rounded = to_e4m3(x.float() / row_scale[:, None])
    # A product of two e4m3 numbers is a multiple of 2**-18 below 2**18: float64 adds up 2**16 of them without rounding,
    # and so in any order.
    sums = rounded.double() @ qweight.double().T
    precision = wide(x).dtype
    return (sums.to(precision) * row_scale[:, None].to(precision) * scale.to(precision)).to(x.dtype)


def quantise_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row of [N, K] with its own scale max|w| / 448: e4m3 [N, K], fp32 [N]. Zero rows have scale 0."""
    rows = weight.float()
    scale = rows.abs().amax(-1) / FP8_MAX
    steps = rows / scale[:, None]
    return to_e4m3(torch.where(scale[:, None] == 0, torch.zeros_like(steps), steps)), scale


def to_e4m3(x: Tensor) -> Tensor:
    """Nearest e4m3 number, ties to the even mantissa; what is beyond 448 becomes 448, NaN stays NaN."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def dequantise_fp8(qweight: Tensor, scale: Tensor) -> Tensor:
    """The matrix [N, K] in the precision of `scale`, at least fp32."""
    return qweight.to(wide(scale).dtype) * wide(scale)[:, None]
