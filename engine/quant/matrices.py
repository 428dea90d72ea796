"""Quantised matrices in the layouts that are computed with, whatever checkpoint they came from.

    Int4Weight   4 bits, weight[n, k] = (nibble - zero[n, g]) * scale[n, g], activations as they are
    ByteWeight   8 bits and one scale per row; activations are rounded too, token by token:
                 y[t, n] = (sum over k of xq[t, k] * qweight[n, k]) * max|x[t]| / 127 * scale[n]

The int8 sum is over integers, so it is exact and the product is the fastest of all. What it costs is accuracy where one
activation of a token is far larger than the rest: they all share its scale (LLM.int8 below, `quantizer/methods.py`).

Sources: vLLM model_executor/layers/quantization: auto_gptq.py and auto_awq.py, which repack to Marlin's layout, fp8.py
and compressed_tensors_w8a8_int8.py; FP8 Formats for Deep Learning (Micikevicius et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.config import ConfigError
from engine.layers.linear import Linear, UnquantizedLinearMethod
from kernels import ops

E4M3 = torch.float8_e4m3fn
THRESHOLD = 6.0  # Size from which LLM.int8 keeps an activation as a float


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A matrix [N, K] as `ops.int4_linear` takes it, which walks along the rows that it adds up.

    GPTQ with act-order has its columns in groups by importance: its columns are sorted by group once, and every x is
    put into that order before the product (`permutation`). Weights of 8 bits with floating-point activations are two
    such matrices side by side (`is_split`), which need no kernel of their own:

        q - zero = 16 * (high nibble of q - high nibble of zero) + (low nibble of q - low nibble of zero)
        W x      = [ high, scale * 16 | low, scale ] [x | x]
    """

    qweight: Tensor  # uint8 [N, K / 2]
    scale: Tensor  # [N, K / G]
    zero: Tensor  # uint8 [N, K / G]
    group_size: int
    permutation: Tensor | None = None
    """int64 [K]: column j of this layout is column permutation[j] of the checkpoint; None: the same."""
    is_split: bool = False  # 8 bits: high nibbles and low nibbles side by side, [N, 2 * K]

    @classmethod
    def pack(
        cls, steps: Tensor, scale: Tensor, zero: Tensor, permutation: Tensor | None = None, *, bits: int = 4
    ) -> Int4Weight:
        """From steps uint8 [N, K] of 0 to 2**bits - 1 in the checkpoint's order, and scale and zero [N, K / G]."""
        group_size = steps.shape[1] // scale.shape[1]
        if permutation is not None:
            steps = steps[:, permutation]
        if bits == 8:
            steps, zero = (torch.cat((values >> 4, values & 15), dim=1) for values in (steps, zero))
            scale = torch.cat((scale.float() * 16, scale.float()), dim=1)
        packed, scale = ops.pack_int4(steps).contiguous(), _narrowed(scale).contiguous()
        return cls(packed, scale, zero.contiguous(), group_size, permutation, bits == 8)

    def prepared(self) -> Int4Product:
        operands = ops.pack_int4_weight(self.qweight, self.scale, self.zero, self.group_size)
        return Int4Product(operands, self.permutation, self.is_split)

    def dequantise(self) -> Tensor:
        """The matrix [N, K] in fp32, its columns as in the checkpoint."""
        weight = ops.dequantise_int4(self.qweight, self.scale, self.zero, self.group_size)
        if self.is_split:
            high, low = weight.chunk(2, dim=1)
            weight = high + low
        return weight if self.permutation is None else weight[:, self.permutation.argsort()]

    @classmethod
    def stack(cls, weights: Sequence[Int4Weight]) -> list[Int4Weight]:
        """Matrices over the same x, one above the other: one matrix if their columns are in the same order.

        Query, key and value read the same x, so act-order gives them the same order; if a checkpoint says otherwise,
        they stay apart and each puts x into its own.
        """
        first = weights[0]
        if any(weight._layout() != first._layout() for weight in weights[1:]):
            return list(weights)
        dtype = first.scale.dtype if len({weight.scale.dtype for weight in weights}) == 1 else torch.float32
        qweight = torch.cat([weight.qweight for weight in weights])
        scale = torch.cat([weight.scale.to(dtype) for weight in weights])
        zero = torch.cat([weight.zero for weight in weights])
        return [cls(qweight, scale, zero, first.group_size, first.permutation, first.is_split)]

    def _layout(self) -> tuple[int, bytes | None]:
        order = self.permutation
        return self.group_size, None if order is None else order.cpu().numpy().tobytes()


@dataclass(frozen=True, slots=True)
class Int4Product:
    """An Int4Weight, ready to multiply with."""

    operands: tuple[Any, ...]  # What `ops.int4_linear` takes after x
    permutation: Tensor | None
    is_split: bool

    @property
    def nbytes(self) -> int:
        """Bytes of nibbles, scales, zero points and permutation."""
        return _num_bytes(*self.operands, self.permutation)

    @property
    def waits_for_values(self) -> bool:
        return False

    @property
    def is_recordable(self) -> bool:
        return self.permutation is None and not self.is_split

    def multiply(self, x: Tensor, out_dtype: torch.dtype | None) -> Tensor:
        """x [T, K] @ weight.T: [T, N] in `out_dtype`, by default x's."""
        if self.permutation is not None:
            x = x[:, self.permutation]
        if self.is_split:
            x = torch.cat((x, x), dim=1)
        return ops.int4_linear(x, *self.operands, out_dtype=out_dtype)  # type: ignore[misc]


def _num_bytes(*parts: Any) -> int:
    return sum(getattr(part, "nbytes", 0) for part in parts)


def _narrowed(scale: Tensor) -> Tensor:
    """The same numbers in 16 bits if fp16 or bf16 holds all of them: half the memory for scales."""
    for dtype in (torch.float16, torch.bfloat16):
        narrow = scale.to(dtype)
        if torch.equal(narrow.float(), scale.float()):
            return narrow
    return scale


@dataclass(frozen=True, slots=True)
class ByteWeight:
    """A matrix [N, K] of int8 or e4m3 (largest 448) with one scale per row."""

    qweight: Tensor
    scale: Tensor  # fp32 [N]
    input_scale: Tensor | None = None
    """fp8: activations are divided by this number (static); without it, each token by its max|x| / 448."""
    keeps_outliers: bool = False  # int8: activations beyond THRESHOLD are multiplied as floats

    def prepared(self) -> Int8Product | ByteWeight:
        if self.qweight.dtype == E4M3:
            return self
        operands = ops.pack_int8_weight(self.qweight, self.scale)
        return Int8Product(operands, (self.qweight, self.scale) if self.keeps_outliers else None)

    @property
    def nbytes(self) -> int:
        return _num_bytes(self.qweight, self.scale)

    @property
    def waits_for_values(self) -> bool:
        return False

    @property
    def is_recordable(self) -> bool:
        return False  # a CPU emulates e4m3

    def multiply(self, x: Tensor, out_dtype: torch.dtype | None) -> Tensor:
        y = ops.fp8_linear(x, self.qweight, self.scale, self.input_scale)
        return y if out_dtype is None else y.to(out_dtype)

    @classmethod
    def stack(cls, weights: Sequence[ByteWeight]) -> list[ByteWeight]:
        """Matrices over the same x, one above the other. Each keeps its own scales, so nothing is rounded a second
        time (vLLM rounds them again to the largest). Of different static input scales, which are of the same x, the
        largest is taken, which no part can overflow."""
        qweight = torch.cat([weight.qweight for weight in weights])
        scale = torch.cat([weight.scale for weight in weights])
        inputs = [weight.input_scale for weight in weights if weight.input_scale is not None]
        largest = torch.stack(inputs).max() if inputs else None
        if largest is not None and not largest > 0:
            raise ConfigError(f"an input_scale of an FP8 checkpoint is {largest}, expected a number above 0")
        return [cls(qweight, scale, largest)]


@dataclass(frozen=True, slots=True)
class Int8Product:
    """A ByteWeight of int8, ready to multiply with."""

    operands: tuple[Any, ...]  # What `ops.int8_linear` takes after x
    plain: tuple[Tensor, Tensor] | None
    """LLM.int8: qweight and scale once more, for the columns of outliers."""

    @property
    def nbytes(self) -> int:
        kept = [
            tensor for tensor in self.plain or () if not any(tensor is operand for operand in self.operands)
        ]
        return _num_bytes(*self.operands, *kept)

    @property
    def waits_for_values(self) -> bool:
        """Whether a product needs to know which activations are large."""
        return self.plain is not None

    @property
    def is_recordable(self) -> bool:
        return self.plain is None

    def multiply(self, x: Tensor, out_dtype: torch.dtype | None) -> Tensor:
        if self.plain is None:
            return ops.int8_linear(x, *self.operands, out_dtype=out_dtype)  # type: ignore[misc]
        y = llm_int8_linear(x, *self.plain, operands=self.operands)
        return y if out_dtype is None else y.to(out_dtype)


def llm_int8_linear(
    x: Tensor,
    qweight: Tensor,
    scale: Tensor,
    threshold: float = THRESHOLD,
    operands: tuple[Any, ...] | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """x [T, K] times int8 weights [N, K] with scales [N]: activations beyond `threshold` are not rounded; [T, N].

        x = [ 0.3  -41.0  0.2 ]    beyond the threshold of 6:   -41.0                       times its column, in floats
                                   all others:            0.3    0    0.2                   rounded with scale 0.3 / 127
                                                                                            added up

    With int8 alone the -41 would set the scale for all: 0.3 becomes one step of 0.32. Outliers are found in every token
    for itself (the paper takes a column for all tokens as soon as one of them is large), so that a token's result does
    not depend on its batch. That is a small product for each token that has one: it shows the effect, it is not fast.
    operands: the same matrix from `ops.pack_int8_weight`. weight: the matrix before rounding, [N, K]: its columns are
    multiplied with the outliers, as in the paper. A loaded model has no such copy; its columns are the int8 ones times
    their scales, as in bitsandbytes, where a column of weights far smaller than its row's largest is lost.
    Source: LLM.int8() (Dettmers et al. 2022), section 3.2; vLLM's former bitsandbytes.py with load_in_8bit.
    """
    outlying = x.abs() > threshold
    y = ops.int8_linear(x.masked_fill(outlying, 0), *(operands or (qweight, scale)))
    for token in outlying.any(1).nonzero().flatten().tolist():
        columns = outlying[token].nonzero().flatten()
        rounded = qweight[:, columns].float() * scale[:, None]
        weights = rounded if weight is None else weight[:, columns].float()
        y[token] += (weights @ x[token, columns].float()).to(y.dtype)
    return y


class Layout(Protocol):
    """A checkpoint's way of storing a matrix."""

    def empty(self, rows: int, columns: int) -> dict[str, Tensor]:
        """Storage for a matrix, by the names in the checkpoint."""
        ...

    def unpack(self, tensors: dict[str, Tensor], rows: int, columns: int) -> Any:
        """Return the Int4Weight or ByteWeight that the filled storage holds."""
        ...


class _QuantizedMethod:
    """Multiply with the layer's `matrices`; subclasses say where these come from."""

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        products = [matrix.multiply(x, layer.out_dtype) for matrix in layer.matrices]
        y = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        return y if layer.bias is None else y.add_(layer.bias)

    def is_recordable(self, layer: Linear, *, is_cuda: bool) -> bool:
        if is_cuda:
            return not any(matrix.waits_for_values for matrix in layer.matrices)
        return layer.bias is None and len(layer.matrices) == 1 and layer.matrices[0].is_recordable


class CheckpointMethod(_QuantizedMethod):
    """Matrices that the checkpoint stores in a layout of its own."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def create_weights(self, layer: Linear) -> None:
        for part, rows in layer.parts.items():
            layer.stored[part] = self.layout.empty(rows, layer.in_features)

    def process_weights_after_loading(self, layer: Linear) -> None:
        matrices = [
            self.layout.unpack(layer.stored[part], rows, layer.in_features)
            for part, rows in layer.parts.items()
        ]
        layer.matrices = [matrix.prepared() for matrix in type(matrices[0]).stack(matrices)]


class OnlineMethod(_QuantizedMethod):
    """A float matrix, loaded as without quantisation and then rounded."""

    def __init__(self, quantise: Callable[[Tensor], Int4Weight | ByteWeight]) -> None:
        self.quantise = quantise

    def create_weights(self, layer: Linear) -> None:
        UnquantizedLinearMethod().create_weights(layer)

    def process_weights_after_loading(self, layer: Linear) -> None:
        layer.matrices = [self.quantise(layer.weight.data).prepared()]
        del layer.weight
