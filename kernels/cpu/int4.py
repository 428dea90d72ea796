"""Products with 4-bit weights in C++, see `int4.cpp`."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import FLOATS
from kernels.cpu.memory import empty

_int4_linear = function("int4_linear", "pllpl" + "pllpl" + "pllll")


def int4_linear(x: Tensor, qweight: Tensor, scale: Tensor, zero: Tensor, group_size: int) -> Tensor:
    tokens, columns = x.shape
    rows = qweight.shape[0]
    y = empty((tokens, rows), x.dtype)
    _int4_linear(
        *(x.data_ptr(), x.stride(0), FLOATS[x.dtype], qweight.data_ptr(), qweight.stride(0)),
        *(scale.data_ptr(), scale.stride(0), FLOATS[scale.dtype], zero.data_ptr(), zero.stride(0)),
        *(y.data_ptr(), tokens, rows, columns, group_size),
    )
    return y


def unsupported_int4_linear(x: Tensor, qweight: Tensor, scale: Tensor, *_: object) -> str | None:
    for name, tensor in (("x", x), ("scale", scale)):
        if tensor.dtype not in FLOATS:
            return f"{name} is {tensor.dtype}, supported: float32, float16 or bfloat16"
    return None
