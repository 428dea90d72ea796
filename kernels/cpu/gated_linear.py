"""A product and SwiGLU's activation of its halves in one pass, see `gemm.h`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.cpu import linear
from kernels.cpu.linear import PackedPairs, PackedWeight
from kernels.cpu.memory import empty


def pack_weight(weight: Tensor) -> PackedWeight | PackedPairs:
    return linear.pack_weight(weight, gated=True)


def packed(x: Tensor, weight: Tensor, *rest: Tensor | None) -> tuple[Any, ...]:
    """The arguments of `gated_linear` with the matrix packed, as the engine packs it when it loads a model."""
    return x, pack_weight(weight), *rest


def gated_linear(x: Tensor, weight: PackedWeight | PackedPairs, bias: Tensor | None = None) -> Tensor:
    out = empty((x.shape[0], weight.out_features // 2), x.dtype)
    linear.multiply(x, weight, bias, out, linear.ACTIVATED)
    return out


def unsupported_gated_linear(
    x: Tensor, weight: Tensor | PackedWeight | PackedPairs, bias: Tensor | None = None
) -> str | None:
    if not isinstance(weight, Tensor) and not weight.is_gated:
        return "the weight was packed without gated=True"
    return linear.unsupported_linear(x, weight, bias)
