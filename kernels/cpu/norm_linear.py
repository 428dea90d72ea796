"""A product with the norm in front of it and the rotation behind it, see `norm_gemm.h`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import unlike
from kernels.cpu.linear import ACTIVATED, GATED, PLAIN, PackedPairs, PackedWeight, pack_weight
from kernels.cpu.memory import empty

_norm_gemm = function("norm_gemm", "plplpfp" + "plp" + "plllll" + "plpl" + "lll")
_norm_gemm_bf16 = function("norm_gemm_bf16", "plplpfp" + "pp" + "plllll" + "plpl" + "lll")


def packed(
    x: Tensor, residual: Tensor | None, norm_weight: Tensor, eps: float, weight: Tensor, *rest: object
) -> tuple[object, ...]:
    """The arguments of `norm_linear` with the matrix packed, as the engine packs it when it loads a model."""
    activated = len(rest) > 1 and bool(rest[1])
    return x, residual, norm_weight, eps, pack_weight(weight, gated=activated), *rest


def norm_linear(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    activated: bool = False,
    rotary: tuple[Tensor, Tensor, int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    rows, depth = x.shape
    columns = weight.out_features
    y = empty((rows, columns // 2 if activated else columns), x.dtype)
    total = x if residual is None else empty((rows, depth), x.dtype)
    form = ACTIVATED if activated else GATED if weight.is_gated else PLAIN
    norm = (
        *(x.data_ptr(), x.stride(0)),
        *((None, 0) if residual is None else (residual.data_ptr(), residual.stride(0))),
        *(norm_weight.data_ptr(), eps, total.data_ptr()),
    )
    product = (
        None if bias is None else bias.data_ptr(),
        *(y.data_ptr(), y.shape[1], rows, depth, columns, form),
        *_rotation(rotary, rows, 0 if activated else columns),
    )
    if isinstance(weight, PackedPairs):
        _norm_gemm_bf16(*norm, weight.panels.data_ptr(), *product)
    else:
        _norm_gemm(*norm, weight.panels.data_ptr(), weight.is_bf16, *product)
    return y, total


def _rotation(
    rotary: tuple[Tensor, Tensor, int, int] | None, rows: int, columns: int
) -> tuple[int | None, ...]:
    if rotary is None:
        return None, 0, None, 0, 0, 0, 0
    cos, sin, heads, head_dim = rotary
    if heads * head_dim > columns or 2 * cos.shape[1] > head_dim or min(len(cos), len(sin)) < rows:
        raise ValueError(
            f"{heads} heads of {head_dim} with angles {list(cos.shape)} do not fit in {rows} rows of {columns} columns"
        )
    return cos.data_ptr(), cos.stride(0), sin.data_ptr(), sin.stride(0), heads, head_dim, cos.shape[1]


def unsupported_norm_linear(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor | PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    activated: bool = False,
    rotary: tuple[Tensor, Tensor, int, int] | None = None,
) -> str | None:
    if isinstance(weight, Tensor):
        return "the weight does not come from pack_weight"
    if activated and not weight.is_gated:
        return "the weight was packed without gated=True"
    needed = torch.bfloat16 if isinstance(weight, PackedPairs) else torch.float32
    if x.dtype != needed:
        return f"x is {x.dtype}, supported with this weight: {str(needed).removeprefix('torch.')}"
    if rotary is not None and any(table.dtype != torch.float32 for table in rotary[:2]):
        return f"cos and sin are {rotary[0].dtype} and {rotary[1].dtype}; supported: float32"
    return unlike(x, norm_weight) if residual is None else unlike(x, residual, norm_weight)
