"""Dense products with packed weights: in fp32 (`gemm.cpp`), or with bf16 numbers and fp32 sums (`gemm_bf16.cpp`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.memory import empty

_gemm = function("gemm", "plplp" + "pllll")
_gemm_bf16 = function("gemm_bf16", "plpp" + "pllll" + "l")
_LANES: int = function("gemm_lanes", "", returns="l")()
PANEL = 2 * _LANES  # Columns


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


@dataclass(frozen=True, slots=True)
class PackedPairs:
    """A bf16 matrix [out_features, in_features] for bf16 inputs; the layout is drawn in `gemm_bf16.cpp`."""

    panels: Tensor
    """bf16 [panels, pairs of in, 2 * lanes, 2]."""
    out_features: int
    in_features: int

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def to_dense(self) -> Tensor:
        """The matrix as it was: bf16 [out_features, in_features]."""
        rows = self.panels.transpose(1, 2).flatten(2).flatten(0, 1)
        return rows[: self.out_features, : self.in_features].contiguous()


def pack_weight(weight: Tensor) -> PackedWeight | PackedPairs:
    """[out, in] in fp32 or bf16 -> panels."""
    return _pack_pairs(weight) if weight.dtype == torch.bfloat16 else _pack_float32(weight)


def packed(x: Tensor, weight: Tensor, *rest: Tensor | None) -> tuple[Any, ...]:
    """The arguments of `linear` with the matrix packed, as the engine packs it when it loads a model."""
    return x, pack_weight(weight), *rest


def _pack_pairs(weight: Tensor) -> PackedPairs:
    out_features, in_features = weight.shape
    missing = -out_features % (2 * _LANES), in_features % 2
    padded = torch.nn.functional.pad(weight, (0, missing[1], 0, missing[0])) if any(missing) else weight
    panels = padded.reshape(-1, 2 * _LANES, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()
    return PackedPairs(panels, out_features, in_features)


def _pack_float32(weight: Tensor) -> PackedWeight:
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


def linear(
    x: Tensor,
    weight: PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    rows, depth = x.shape
    columns = weight.out_features
    out = empty((rows, columns), out_dtype or x.dtype)
    sources = x.data_ptr(), x.stride(0), weight.panels.data_ptr()
    bias_address = None if bias is None else bias.data_ptr()
    shape = columns, rows, depth, columns
    if isinstance(weight, PackedPairs):
        is_wide = out.dtype == torch.float32
        _gemm_bf16(*sources, bias_address, out.data_ptr(), is_wide, *shape)
    else:
        _gemm(*sources, weight.is_bf16, bias_address, out.data_ptr(), *shape)
    return out


def unsupported_linear(
    x: Tensor,
    weight: Tensor | PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> str | None:
    if isinstance(weight, Tensor):
        return "the weight does not come from pack_weight"
    needed = torch.bfloat16 if isinstance(weight, PackedPairs) else torch.float32
    if x.dtype != needed:
        return f"x is {x.dtype}, supported with this weight: {str(needed).removeprefix('torch.')}"
    return None if out_dtype in (None, needed, torch.float32) else f"results in {out_dtype}"
