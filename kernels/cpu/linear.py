"""Dense products with packed weights: in fp32 (`gemm.cpp`), or with bf16 numbers and fp32 sums (`gemm_bf16.cpp`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.memory import empty, in_large_pages

_gemm = function("gemm", "plplp" + "plllll")
_gemm_bf16 = function("gemm_bf16", "plpp" + "pllllll")
_LANES: int = function("gemm_lanes", "", returns="l")()
PANEL = 2 * _LANES  # Columns
PLAIN, GATED, ACTIVATED = 0, 1, 2  # `Form` of `gemm.h`


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix [out_features, in_features] as panels of columns of the result; the layout is drawn in `gemm.cpp`."""

    panels: Tensor
    """fp32 [panels, in, 2 * lanes]; or int32 [panels, in, lanes], two bf16 numbers in each word."""
    out_features: int
    in_features: int
    is_gated: bool = False
    """Whether each panel holds columns of both halves of the matrix, see `gemm.h`."""

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
        return _in_order(columns.transpose(1, 2).flatten(0, 1), self)


@dataclass(frozen=True, slots=True)
class PackedPairs:
    """A bf16 matrix [out_features, in_features] for bf16 inputs; the layout is drawn in `gemm_bf16.cpp`."""

    panels: Tensor
    """bf16 [panels, pairs of in, 2 * lanes, 2]."""
    out_features: int
    in_features: int
    is_gated: bool = False

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def to_dense(self) -> Tensor:
        """The matrix as it was: bf16 [out_features, in_features]."""
        return _in_order(self.panels.transpose(1, 2).flatten(2).flatten(0, 1), self)


def _in_order(rows: Tensor, packed: PackedWeight | PackedPairs) -> Tensor:
    """Rows as the panels hold them -> the matrix as it was, without padding."""
    if packed.is_gated:
        halves = rows.view(-1, 2, _LANES, rows.shape[1]).transpose(0, 1).flatten(1, 2)
        rows = halves[:, : packed.out_features // 2].flatten(0, 1)
    return rows[: packed.out_features, : packed.in_features].contiguous()


def pack_weight(weight: Tensor, *, gated: bool = False) -> PackedWeight | PackedPairs:
    """[out, in] in fp32 or bf16 -> panels. gated: two matrices of the same size, for `gated_linear`."""
    rows, (out_features, in_features) = _padded_rows(weight, gated), weight.shape
    if weight.dtype != torch.bfloat16:
        return PackedWeight(in_large_pages(_float32_panels(rows)), out_features, in_features, gated)
    if in_features % 2:
        rows = torch.nn.functional.pad(rows, (0, 1))
    panels = rows.reshape(-1, 2 * _LANES, rows.shape[1] // 2, 2).transpose(1, 2)
    return PackedPairs(in_large_pages(panels), out_features, in_features, gated)


def packed(x: Tensor, weight: Tensor, *rest: Tensor | None) -> tuple[Any, ...]:
    """The arguments of `linear` with the matrix packed, as the engine packs it when it loads a model."""
    return x, pack_weight(weight), *rest


def _padded_rows(weight: Tensor, gated: bool) -> Tensor:
    """[out, in] -> whole panels of rows, in their order; a view if nothing is missing."""
    out_features, in_features = weight.shape
    if not gated:
        missing = -out_features % (2 * _LANES)
        return torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight
    halves = weight.reshape(2, out_features // 2, in_features)
    halves = torch.nn.functional.pad(halves, (0, 0, 0, -halves.shape[1] % _LANES))
    return halves.view(2, -1, _LANES, in_features).transpose(0, 1).reshape(-1, in_features)


def _float32_panels(rows: Tensor) -> Tensor:
    """fp32 [out, in] -> panels; in bf16 if every number is one, as in most checkpoints: then nothing is lost."""
    columns = rows.view(-1, 2 * _LANES, rows.shape[1]).transpose(1, 2).contiguous()
    words = columns.view(torch.int32)
    # Looked at in portions: a mask of the whole matrix would take its memory once more.
    if not any((part & 0xFFFF).any() for part in words.split(64)):
        low, high = words.split(_LANES, dim=-1)
        columns = ((low >> 16) & 0xFFFF).bitwise_or_(high)
    return columns


def linear(
    x: Tensor,
    weight: PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    out = empty((x.shape[0], weight.out_features), out_dtype or x.dtype)
    multiply(x, weight, bias, out, GATED if weight.is_gated else PLAIN)
    return out


def multiply(
    x: Tensor, weight: PackedWeight | PackedPairs, bias: Tensor | None, out: Tensor, form: int
) -> None:
    """Write the product to `out`; form: one of `gemm.h`."""
    sources = x.data_ptr(), x.stride(0), weight.panels.data_ptr()
    bias_address = None if bias is None else bias.data_ptr()
    shape = out.shape[1], x.shape[0], x.shape[1], weight.out_features, form
    if isinstance(weight, PackedPairs):
        is_wide = out.dtype == torch.float32
        _gemm_bf16(*sources, bias_address, out.data_ptr(), is_wide, *shape)
    else:
        _gemm(*sources, weight.is_bf16, bias_address, out.data_ptr(), *shape)


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
