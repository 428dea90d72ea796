"""Products with int8 weights and activations in C++, see `int8.cpp`."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import FLOATS
from kernels.cpu.memory import empty

_int8_linear = function("int8_linear", "pllpl" + "pplll")


def int8_linear(x: Tensor, qweight: Tensor, scale: Tensor) -> Tensor:
    tokens, columns = x.shape
    rows = qweight.shape[0]
    y = empty((tokens, rows), x.dtype)
    _int8_linear(
        *(x.data_ptr(), x.stride(0), FLOATS[x.dtype], qweight.data_ptr(), qweight.stride(0)),
        *(scale.data_ptr(), y.data_ptr(), tokens, rows, columns),
    )
    return y


def unsupported_int8_linear(x: Tensor, qweight: Tensor, scale: Tensor) -> str | None:
    return None if x.dtype in FLOATS else f"x is {x.dtype}, supported: float32, float16 or bfloat16"
