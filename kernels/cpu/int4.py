"""Products with 4-bit weights in C++, see `int4.cpp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import FLOATS
from kernels.cpu.linear import PANEL
from kernels.cpu.memory import empty, in_large_pages
from kernels.reference.nibbles import pack_int4, unpack_int4

_int4_linear = function("int4_linear", "pll" + "pplp" + "pl" + "llll")

STEP = 8  # Depths of a word
MIDDLE = 8  # The nibble that stands for 0 in a word


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """A matrix [out_features, in_features] of 4 bits as panels of columns of the result; drawn in `int4.cpp`."""

    codes: Tensor  # int32 [panels, words of in, 2 * lanes]
    scale: Tensor  # fp32, fp16 or bf16 [panels, groups, 2 * lanes]
    offset: Tensor  # int8 [panels, groups, 2 * lanes]
    out_features: int
    in_features: int

    @property
    def group_size(self) -> int:
        return self.in_features // self.scale.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes + self.offset.nbytes

    def unpack(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return what was packed: qweight, scale, zero and group_size; groups of zeros with the zero point 8."""

        def rows(panels: Tensor) -> Tensor:
            return panels.transpose(1, 2).flatten(0, 1)[: self.out_features].contiguous()

        depths = [((self.codes >> shift) & 15).to(torch.uint8) for shift in _SHIFTS]
        groups = torch.stack(depths, dim=2).flatten(1, 2).unflatten(1, (self.scale.shape[1], -1))
        nibbles = rows(groups[:, :, : self.group_size].flatten(1, 2))
        return (
            pack_int4(nibbles),
            rows(self.scale),
            rows((MIDDLE - self.offset).to(torch.uint8)),
            self.group_size,
        )


_SHIFTS = tuple(4 * (depth // 2) + 16 * (depth % 2) for depth in range(STEP))


def pack_int4_weight(qweight: Tensor, scale: Tensor, zero: Tensor, group_size: int) -> PackedInt4:
    """A matrix as `ops.int4_linear` takes it -> panels.

    A group of zeros gets the zero point 8: then all its terms are 0, and nothing is left of (nibble - 8) + (8 - zero).
    """
    rows, columns = qweight.shape[0], 2 * qweight.shape[1]
    groups, missing_rows = columns // group_size, -rows % PANEL
    pad = torch.nn.functional.pad
    nibbles = unpack_int4(qweight).view(rows, groups, group_size)
    is_zero = (nibbles == zero[..., None]).all(-1)
    nibbles, zero = nibbles.masked_fill(is_zero[..., None], MIDDLE), zero.masked_fill(is_zero, MIDDLE)
    nibbles = pad(nibbles, (0, -group_size % STEP, 0, 0, 0, missing_rows), value=MIDDLE)
    depths = nibbles.view(-1, PANEL, nibbles[0].numel() // STEP, STEP).transpose(1, 2)
    codes = torch.zeros(depths.shape[:3], dtype=torch.int32)
    for depth, shift in enumerate(_SHIFTS):
        codes |= depths[..., depth].int() << shift

    def panels(values: Tensor) -> Tensor:
        return pad(values, (0, 0, 0, missing_rows)).view(-1, PANEL, groups).transpose(1, 2).contiguous()

    return PackedInt4(
        in_large_pages(codes), panels(scale), panels(MIDDLE - zero.to(torch.int8)), rows, columns
    )


def packed(x: Tensor, *arguments: Any) -> tuple[Any, ...]:
    """The arguments of `int4_linear` with the matrix packed, as the engine packs it when it loads a model."""
    weight, others = arguments[:4], arguments[4:]
    return x, pack_int4_weight(*weight), None, None, None, *others


def int4_linear(
    x: Tensor,
    qweight: Tensor | PackedInt4,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
    group_size: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    if isinstance(qweight, Tensor):
        assert scale is not None and zero is not None and group_size is not None
        qweight = pack_int4_weight(qweight, scale, zero, group_size)
    rows, depth = x.shape
    y = empty((rows, qweight.out_features), out_dtype or x.dtype)
    _int4_linear(
        *(x.data_ptr(), x.stride(0), FLOATS[x.dtype]),
        *(qweight.codes.data_ptr(), qweight.scale.data_ptr(), FLOATS[qweight.scale.dtype]),
        *(qweight.offset.data_ptr(), y.data_ptr(), FLOATS[y.dtype]),
        *(rows, depth, qweight.out_features, qweight.group_size),
    )
    return y


def unsupported_int4_linear(
    x: Tensor, qweight: Tensor | PackedInt4, scale: Tensor | None = None, *_: object
) -> str | None:
    for name, tensor in (("x", x), ("scale", scale)):
        if tensor is not None and tensor.dtype not in FLOATS:
            return f"{name} is {tensor.dtype}, supported: float32, float16 or bfloat16"
    return None
