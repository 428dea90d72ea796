"""4-bit weights: two to a byte, a scale and a zero point for every group of columns of a row.

row n   k = 0     1   |   2     3   | ...        weight[n, k] = (nibble - zero[n, g]) * scale[n, g]
byte       low  high  |  low  high  | ...                   g = k // group_size
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.reference.nibbles import NIBBLE_MAX, pack_int4, unpack_int4
from kernels.reference.precision import wide

if TYPE_CHECKING:
    from kernels.cpu.int4 import PackedInt4


def int4_linear(
    x: Tensor,
    qweight: Tensor | PackedInt4,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
    group_size: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    if not isinstance(qweight, Tensor):
        qweight, scale, zero, group_size = qweight.unpack()
    assert scale is not None and zero is not None and group_size is not None
    weight = dequantise_int4(qweight, scale.to(wide(x).dtype), zero, group_size)
    return (wide(x) @ weight.T).to(out_dtype or x.dtype)


def quantise_int4(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Round a matrix [N, K] to nearest: (qweight, scale, zero) as `ops.int4_linear` takes them.

    Each group's range is stretched to contain 0, so that 0 is stored exactly and the zero point is a nibble.
    The scale has weight's dtype, and the nibbles are chosen for the scale as it is stored.
    """
    rows, columns = weight.shape
    if group_size % 2 or columns % group_size:
        raise ValueError(f"group_size {group_size} is not even, or does not divide {columns} columns")
    groups = wide(weight).reshape(rows, columns // group_size, group_size)
    low = groups.amin(-1).clamp_max(0)
    high = groups.amax(-1).clamp_min(0)
    scale = ((high - low) / NIBBLE_MAX).to(weight.dtype)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    step = scale.to(groups.dtype)
    zero = (-low / step).round().clamp(0, NIBBLE_MAX)
    nibbles = ((groups / step[..., None]).round() + zero[..., None]).clamp(0, NIBBLE_MAX)
    return pack_int4(nibbles.to(torch.uint8).reshape(rows, columns)), scale, zero.to(torch.uint8)


def dequantise_int4(qweight: Tensor, scale: Tensor, zero: Tensor, group_size: int) -> Tensor:
    """The matrix [N, K] in the precision of `scale`, at least fp32."""
    rows, num_groups = scale.shape
    nibbles = unpack_int4(qweight).reshape(rows, num_groups, group_size)
    steps = nibbles.to(torch.int16) - zero[..., None].to(torch.int16)
    return (steps * wide(scale)[..., None]).reshape(rows, num_groups * group_size)
