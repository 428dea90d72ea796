"""Dense products in fp32 with weights packed for `gemm.cpp`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.memory import empty

_gemm = function("gemm", "plplp" + "pllll")
_LANES: int = function("gemm_lanes", "", returns="l")()


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix [out_features, in_features] as panels of columns of the result; the layout is drawn in `gemm.cpp`."""

    panels: Tensor
    """fp32 [panels, in, 2 * lanes]; or int32 [panels, in, lanes], two bf16 numbers in each word."""
    out_features: int
    in_features: int

    @property
    def is_bf16(self) -> bool:
        return self.panels.dtype == torch.int32

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def to_dense(self) -> Tensor:
        """The matrix as it was: fp32 [out_features, in_features]."""
        columns = self.panels
        if self.is_bf16:
            low, high = self.panels << 16, self.panels & -65536
            columns = torch.cat((low, high), dim=-1).view(torch.float32)
        return columns.transpose(1, 2).flatten(0, 1)[: self.out_features].contiguous()


def pack_weight(weight: Tensor) -> PackedWeight:
    """fp32 [out, in] -> panels; in bf16 if every number is one, as in most checkpoints: then nothing is lost."""
    out_features, in_features = weight.shape
    num_panels = -(-out_features // (2 * _LANES))
    missing = num_panels * 2 * _LANES - out_features
    padded = torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight
    columns = padded.view(num_panels, 2 * _LANES, in_features).transpose(1, 2).contiguous()
    words = columns.view(torch.int32)
    # Looked at in portions: a mask of the whole matrix would take its memory once more.
    if not any((part & 0xFFFF).any() for part in words.split(64)):
        low, high = words.split(_LANES, dim=-1)
        columns = ((low >> 16) & 0xFFFF).bitwise_or_(high)
    return PackedWeight(columns, out_features, in_features)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    rows, depth = x.shape
    out = empty((rows, weight.out_features), torch.float32)
    bias_address, columns = None if bias is None else bias.data_ptr(), weight.out_features
    _gemm(
        *(x.data_ptr(), x.stride(0), weight.panels.data_ptr(), weight.is_bf16, bias_address),
        *(out.data_ptr(), columns, rows, depth, columns),
    )
    return out


def unsupported_linear(x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> str | None:
    if not isinstance(weight, PackedWeight):
        return "the weight does not come from pack_weight"
    return None if x.dtype == torch.float32 else f"x is {x.dtype}, supported: float32"
