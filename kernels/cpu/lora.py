"""Low-rank adapters in C++, see `lora.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.memory import empty

_lora_shrink = function("lora_shrink", "plppplllll")
_lora_expand = function("lora_expand", "pllppplplll")
_MAX_SLICES: int = function("lora_max_slices", "", returns="l")()


def lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> Tensor:
    slices, adapters, rank, depth = lora_a.shape
    tokens = x.shape[0]
    out = empty((slices, tokens, rank), torch.float32)
    _lora_shrink(
        x.data_ptr(),
        x.stride(0),
        lora_a.data_ptr(),
        token_adapter.data_ptr(),
        out.data_ptr(),
        slices,
        tokens,
        adapters,
        rank,
        depth,
    )
    return out


def unsupported_lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> str | None:
    return _not_float32(x, lora_a)


def lora_expand(
    shrunk: Tensor, lora_b: Sequence[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> None:
    parts = [(b.data_ptr(), b.shape[1], *b.stride()) for b in lora_b]
    numbers = (ctypes.c_int64 * (5 * len(parts)))(*(number for part in parts for number in part))
    _lora_expand(
        shrunk.data_ptr(),
        shrunk.stride(0),
        shrunk.stride(1),
        ctypes.addressof(numbers),
        token_adapter.data_ptr(),
        y.data_ptr(),
        y.stride(0),
        scaling.data_ptr(),
        len(parts),
        y.shape[0],
        shrunk.shape[2],
    )


def unsupported_lora_expand(
    shrunk: Tensor, lora_b: Sequence[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> str | None:
    if len(lora_b) > _MAX_SLICES:
        return f"{len(lora_b)} slices, supported: up to {_MAX_SLICES}"
    return _not_float32(y, *lora_b)


def _not_float32(*tensors: Tensor) -> str | None:
    other = next((each.dtype for each in tensors if each.dtype != torch.float32), None)
    return None if other is None else f"{other}, supported: float32"
