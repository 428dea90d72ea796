"""Low-rank adapters in C++, see `lora.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.memory import empty

_lora_shrink = function("lora_shrink", "pl" + "pplp" + "pllll")
_lora_expand = function("lora_expand", "pll" + "plp" + "plplll")
_KINDS = {
    (torch.float32, torch.float32): 0,
    (torch.float32, torch.bfloat16): 1,
    (torch.bfloat16, torch.bfloat16): 2,
}
_MAX_SLICES: int = function("lora_max_slices", "", returns="l")()


def lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> Tensor:
    slices, _, rank, depth = lora_a.shape
    tokens = x.shape[0]
    strides = (ctypes.c_int64 * 4)(*lora_a.stride())
    out = empty((slices, tokens, rank), torch.float32)
    _lora_shrink(
        *(x.data_ptr(), x.stride(0)),
        *(
            lora_a.data_ptr(),
            ctypes.addressof(strides),
            _KINDS[x.dtype, lora_a.dtype],
            token_adapter.data_ptr(),
        ),
        *(out.data_ptr(), slices, tokens, rank, depth),
    )
    return out


def unsupported_lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> str | None:
    return _unsupported_types(x, lora_a)


def lora_expand(
    shrunk: Tensor, lora_b: Sequence[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> None:
    parts = [(b.data_ptr(), b.shape[1], *b.stride()) for b in lora_b]
    numbers = (ctypes.c_int64 * (5 * len(parts)))(*(number for part in parts for number in part))
    _lora_expand(
        *(shrunk.data_ptr(), shrunk.stride(0), shrunk.stride(1)),
        *(ctypes.addressof(numbers), _KINDS[y.dtype, lora_b[0].dtype], token_adapter.data_ptr()),
        *(y.data_ptr(), y.stride(0), scaling.data_ptr(), len(parts), y.shape[0], shrunk.shape[2]),
    )


def unsupported_lora_expand(
    shrunk: Tensor, lora_b: Sequence[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> str | None:
    if len(lora_b) > _MAX_SLICES:
        return f"{len(lora_b)} slices, supported: up to {_MAX_SLICES}"
    return _unsupported_types(y, *lora_b)


def _unsupported_types(activations: Tensor, *weights: Tensor) -> str | None:
    dtypes = {weight.dtype for weight in weights}
    if len(dtypes) == 1 and (activations.dtype, *dtypes) in _KINDS:
        return None
    listed = ", ".join(sorted(map(str, dtypes)))
    return f"activations are {activations.dtype}, adapters {listed}, supported: fp32 and either, or both bf16"
