"""Products with int8 weights and activations in C++, see `int8.cpp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import FLOATS
from kernels.cpu.linear import PANEL
from kernels.cpu.memory import empty, in_large_pages

_int8_linear = function("int8_linear", "pll" + "ppp" + "pl" + "lll")

STEP = 4  # Depths of a word


@dataclass(frozen=True, slots=True)
class PackedInt8:
    """An int8 matrix [out_features, in_features] as panels of columns of the result; drawn in `int8.cpp`."""

    codes: Tensor  # int8 [panels, words of in, 2 * lanes, 4]
    totals: Tensor  # int32 [panels, 2 * lanes]
    scale: Tensor  # fp32 [panels, 2 * lanes]
    out_features: int
    in_features: int

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.totals.nbytes + self.scale.nbytes

    def unpack(self) -> tuple[Tensor, Tensor]:
        """Return what was packed: qweight and scale."""
        rows = self.codes.transpose(1, 2).flatten(2).flatten(0, 1)
        return rows[: self.out_features, : self.in_features].contiguous(), self.scale.flatten()[
            : self.out_features
        ]


def pack_int8_weight(qweight: Tensor, scale: Tensor) -> PackedInt8:
    """A matrix as `ops.int8_linear` takes it -> panels."""
    rows, columns = qweight.shape
    missing_rows, pad = -rows % PANEL, torch.nn.functional.pad
    codes = pad(qweight, (0, -columns % STEP, 0, missing_rows))
    codes = codes.view(-1, PANEL, codes.shape[1] // STEP, STEP).transpose(1, 2)
    totals = pad(qweight.sum(1, dtype=torch.int32), (0, missing_rows)).view(-1, PANEL)
    return PackedInt8(
        in_large_pages(codes), totals, pad(scale.float(), (0, missing_rows)).view(-1, PANEL), rows, columns
    )


def packed(x: Tensor, *arguments: Any) -> tuple[Any, ...]:
    """The arguments of `int8_linear` with the matrix packed, as the engine packs it when it loads a model."""
    weight, others = arguments[:2], arguments[2:]
    return x, pack_int8_weight(*weight), None, *others


def int8_linear(
    x: Tensor,
    qweight: Tensor | PackedInt8,
    scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    if isinstance(qweight, Tensor):
        assert scale is not None
        qweight = pack_int8_weight(qweight, scale)
    rows, depth = x.shape
    y = empty((rows, qweight.out_features), out_dtype or x.dtype)
    _int8_linear(
        *(x.data_ptr(), x.stride(0), FLOATS[x.dtype]),
        *(qweight.codes.data_ptr(), qweight.totals.data_ptr(), qweight.scale.data_ptr()),
        *(y.data_ptr(), FLOATS[y.dtype], rows, depth, qweight.out_features),
    )
    return y


def unsupported_int8_linear(
    x: Tensor, qweight: Tensor | PackedInt8, scale: Tensor | None = None, *_: object
) -> str | None:
    return None if x.dtype in FLOATS else f"x is {x.dtype}, supported: float32, float16 or bfloat16"
