"""4-bit weights in the one layout that is computed with, whatever checkpoint they came from.

    AWQ     int32 [K, N / 8]   --+
    GPTQ    int32 [K / 8, N]   --+--unpack once, at load-->  qweight uint8 [N, K / 2], scale [N, K / G], zero [N, K / G]
    packed  int32 [N, K / 8]   --+                           weight[n, k] = (nibble - zero[n, g]) * scale[n, g]

So there is one kernel (`ops.int4_linear`), and it walks along the rows that it adds up. GPTQ with act-order has its
columns in groups by importance: its columns are sorted by group once, and every x is put into that order before the
product (`permutation`).

Weights of 8 bits with floating-point activations are two such matrices side by side, which need no kernel of their own:

    q - zero = 16 * (high nibble of q - high nibble of zero) + (low nibble of q - low nibble of zero)
    W x      = [ high, scale * 16 | low, scale ] [x | x]

Source: vLLM model_executor/layers/quantization/auto_gptq.py and auto_awq.py, which repack to Marlin's layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from engine.layers.linear import Linear
from kernels import ops


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A matrix [N, K] as `ops.int4_linear` takes it."""

    qweight: Tensor
    scale: Tensor
    zero: Tensor
    group_size: int
    permutation: Tensor | None = None
    """int64 [K]: column j of this layout is column permutation[j] of the checkpoint; None: the same."""
    is_split: bool = False
    """8 bits: high nibbles and low nibbles side by side, [N, 2 * K]."""

    @classmethod
    def pack(
        cls, steps: Tensor, scale: Tensor, zero: Tensor, permutation: Tensor | None = None
    ) -> Int4Weight:
        """From steps uint8 [N, K] of 0 to 15, and scale and zero [N, K / G]."""
        return cls(
            ops.pack_int4(steps).contiguous(),
            _narrowed(scale).contiguous(),
            zero.contiguous(),
            steps.shape[1] // scale.shape[1],
            permutation,
        )

    @classmethod
    def pack_int8(
        cls, steps: Tensor, scale: Tensor, zero: Tensor, permutation: Tensor | None = None
    ) -> Int4Weight:
        """From steps uint8 [N, K] of 0 to 255, and scale and zero [N, K / G]."""
        halves = [torch.cat((values >> 4, values & 15), dim=1) for values in (steps, zero)]
        packed = cls.pack(halves[0], torch.cat((scale.float() * 16, scale.float()), dim=1), halves[1])
        return replace(packed, permutation=permutation, is_split=True)

    @property
    def nbytes(self) -> int:
        """Bytes of nibbles, scales, zero points and permutation."""
        tensors = (self.qweight, self.scale, self.zero, self.permutation)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def multiply(self, x: Tensor) -> Tensor:
        """x [T, K] @ weight.T: [T, N]."""
        if self.permutation is not None:
            x = x[:, self.permutation]
        if self.is_split:
            x = torch.cat((x, x), dim=1)
        return ops.int4_linear(x, self.qweight, self.scale, self.zero, self.group_size)

    def dequantise(self) -> Tensor:
        """The matrix [N, K] in fp32, its columns as in the checkpoint."""
        weight = ops.dequantise_int4(self.qweight, self.scale, self.zero, self.group_size)
        if self.is_split:
            high, low = weight.chunk(2, dim=1)
            weight = high + low
        return weight if self.permutation is None else weight[:, self.permutation.argsort()]


def stack(weights: Sequence[Int4Weight]) -> list[Int4Weight]:
    """Matrices over the same x, one above the other: one matrix if their columns are in the same order.

    Query, key and value read the same x, so act-order gives them the same order; if a checkpoint says otherwise,
    they stay apart and each puts x into its own.
    """
    first = weights[0]
    if any(_layout(weight) != _layout(first) for weight in weights[1:]):
        return list(weights)
    dtype = first.scale.dtype if len({weight.scale.dtype for weight in weights}) == 1 else torch.float32
    return [
        Int4Weight(
            torch.cat([weight.qweight for weight in weights]),
            torch.cat([weight.scale.to(dtype) for weight in weights]),
            torch.cat([weight.zero for weight in weights]),
            first.group_size,
            first.permutation,
            first.is_split,
        )
    ]


def _layout(weight: Int4Weight) -> tuple[int, bytes | None]:
    order = weight.permutation
    return weight.group_size, None if order is None else order.cpu().numpy().tobytes()


def _narrowed(scale: Tensor) -> Tensor:
    """The same numbers in 16 bits if fp16 or bf16 holds all of them: half the memory for scales."""
    for dtype in (torch.float16, torch.bfloat16):
        narrow = scale.to(dtype)
        if torch.equal(narrow.float(), scale.float()):
            return narrow
    return scale


class Int4Layout(Protocol):
    """A checkpoint's way of storing 4-bit matrices."""

    def empty(self, rows: int, columns: int) -> dict[str, Tensor]:
        """Storage for a matrix, by the names in the checkpoint."""
        ...

    def unpack(self, tensors: dict[str, Tensor], rows: int, columns: int) -> Int4Weight:
        """Return the weights that the filled storage holds."""
        ...


class Int4LinearMethod:
    """W4A16, or W8A16 as two nibbles: activations as they are."""

    def __init__(self, layout: Int4Layout) -> None:
        self.layout = layout

    def create_weights(self, layer: Linear) -> None:
        for part, rows in layer.parts.items():
            layer.stored[part] = self.layout.empty(rows, layer.in_features)

    def process_weights_after_loading(self, layer: Linear) -> None:
        layer.int4 = stack(
            [
                self.layout.unpack(layer.stored[part], rows, layer.in_features)
                for part, rows in layer.parts.items()
            ]
        )

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        return multiply(layer, x)

    def is_recordable(self, layer: Linear) -> bool:
        return is_recordable(layer)


def multiply(layer: Linear, x: Tensor) -> Tensor:
    """x [T, in] through the matrices in `layer.int4`, bias added."""
    products = [weight.multiply(x) for weight in layer.int4]
    y = products[0] if len(products) == 1 else torch.cat(products, dim=1)
    return y if layer.bias is None else y.add_(layer.bias)


def is_recordable(layer: Linear) -> bool:
    if layer.bias is not None or len(layer.int4) > 1:
        return False
    return layer.int4[0].permutation is None and not layer.int4[0].is_split
