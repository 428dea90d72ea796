"""RMSNorm in C++, see `norm.cpp`."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import FLOATS, unlike
from kernels.cpu.memory import empty

_rms_norm = function("rms_norm", "ppplllllfl")
_fused_add_rms_norm = function("fused_add_rms_norm", "plplp" + "ppllfl")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = empty(x.shape, x.dtype)
    size = x.shape[-1]
    if x.dim() == 3:
        outer, inner, _ = x.shape
        outer_stride, inner_stride, _ = x.stride()
    else:
        outer, inner, outer_stride, inner_stride = x.numel() // size, 1, size, size
        if x.dim() == 2:
            outer_stride = x.stride(0)
        else:
            x = x.contiguous()
    shape = outer, inner, outer_stride, inner_stride, size
    _rms_norm(x.data_ptr(), weight.data_ptr(), y.data_ptr(), *shape, eps, FLOATS[x.dtype])
    return y


def unsupported_rms_norm(x: Tensor, weight: Tensor, eps: float) -> str | None:
    return unlike(x, weight)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows, size = x.shape
    y, total = empty((rows, size), x.dtype), empty((rows, size), x.dtype)
    _fused_add_rms_norm(
        *(x.data_ptr(), x.stride(0), residual.data_ptr(), residual.stride(0), weight.data_ptr()),
        *(y.data_ptr(), total.data_ptr(), rows, size, eps, FLOATS[x.dtype]),
    )
    return y, total


def unsupported_fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> str | None:
    return unlike(x, residual, weight)
