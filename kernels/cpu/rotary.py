"""Rotary position embedding in C++, see `rotary.cpp`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.dtypes import FLOATS, unlike
from kernels.cpu.memory import empty

_rotary_embedding = function("rotary_embedding", "pll" + "plpl" + "plllll")


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = empty(x.shape, x.dtype)
    tokens, heads, head_dim = x.shape
    _rotary_embedding(
        *(x.data_ptr(), x.stride(0), x.stride(1)),
        *(cos.data_ptr(), cos.stride(0), sin.data_ptr(), sin.stride(0)),
        *(y.data_ptr(), tokens, heads, head_dim, cos.shape[1], FLOATS[x.dtype]),
    )
    return y


def unsupported_rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    if cos.dtype != torch.float32 or sin.dtype != torch.float32:
        return f"cos and sin are {cos.dtype}; supported: float32"
    return unlike(x)
