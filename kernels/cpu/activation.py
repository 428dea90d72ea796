"""SwiGLU's activation in C++, see `activation.cpp`."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import FLOATS, unlike
from kernels.cpu.memory import empty

_silu_and_mul = function("silu_and_mul", "plplll")


def silu_and_mul(x: Tensor) -> Tensor:
    rows, size = x.shape[0], x.shape[1] // 2
    y = empty((rows, size), x.dtype)
    _silu_and_mul(x.data_ptr(), x.stride(0), y.data_ptr(), rows, size, FLOATS[x.dtype])
    return y


def unsupported_silu_and_mul(x: Tensor) -> str | None:
    return unlike(x)
