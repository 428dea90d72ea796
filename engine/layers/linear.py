"""Linear maps, and several of a checkpoint's maps fused into one matrix product.

A checkpoint stores the query, key and value projections apart; one product over their stacked rows
is faster than three. `MergedLinear` holds the stack and knows which rows belong to which part:

    qkv_proj.weight [q + k + v, in]      q_proj  rows 0 .. q
                                         k_proj  rows q .. q + k
                                         v_proj  rows q + k ..

Source: the packed modules of vLLM (model_executor/layers/linear.py) and nano-vllm. Instead of a loader
function on every parameter, a layer offers its storage under the checkpoint's names
(`checkpoint_tensors`): each is a view that loading fills in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from kernels import ops


def empty_parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter without values and without gradients: loading fills it."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


class LinearMethod(Protocol):
    """How a layer's weights are stored and multiplied: the seam for quantisation (`engine/quant`).

    Life: `create_weights` when the model is built, the loader fills what `Linear.checkpoint_tensors` offers,
    `process_weights_after_loading` repacks it, `apply` runs in every step. Source: vLLM LinearMethodBase.
    """

    def create_weights(self, layer: Linear) -> None:
        """Give the layer its parameters, in the checkpoint's layout."""
        ...

    def process_weights_after_loading(self, layer: Linear) -> None:
        """Put the loaded weights into the layout that computes fastest."""
        ...

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out], bias included."""
        ...


class LinearAdapter(Protocol):
    """What multi-LoRA adds to a layer's output (`engine/lora`)."""

    def add(self, y: Tensor, x: Tensor) -> None:
        """y [T, out] += what the rows' adapters make of x [T, in], in place."""
        ...


class UnquantizedLinearMethod:
    """One floating-point matrix [out, in]."""

    def create_weights(self, layer: Linear) -> None:
        layer.weight = empty_parameter(layer.out_features, layer.in_features, dtype=layer.dtype)

    def process_weights_after_loading(self, layer: Linear) -> None:
        packed = ops.pack_weight(layer.weight.data)
        del layer.weight  # a packed matrix need not be a tensor, and the plain one is not needed any more
        layer.weight = packed

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        return ops.linear(x, layer.weight, layer.bias)


class Linear(nn.Module):
    """x [T, in] -> x @ weight.T + bias [T, out].

    Every projection of a model goes through `forward` of this class: a quantised matrix takes effect through
    `method`, adapters through `lora`.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype
        self.method: LinearMethod = UnquantizedLinearMethod()
        self.lora: LinearAdapter | None = None
        self.method.create_weights(self)
        self.bias = empty_parameter(out_features, dtype=dtype) if bias else None

    def finish_loading(self) -> None:
        """Called once the weights are in."""
        self.method.process_weights_after_loading(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.method.apply(self, x)
        if self.lora is not None:
            self.lora.add(y, x)
        return y

    def extra_repr(self) -> str:
        return f"in={self.in_features}, out={self.out_features}, bias={self.bias is not None}"


class MergedLinear(Linear):
    """Several projections of the same input, stacked along the output."""

    def __init__(self, in_features: int, parts: dict[str, int], *, bias: bool, dtype: torch.dtype) -> None:
        """parts: output size of each projection under its name in the checkpoint, in stacking order."""
        super().__init__(in_features, sum(parts.values()), bias=bias, dtype=dtype)
        self.parts = parts

    def checkpoint_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(`part.weight` or `part.bias`, its rows of the stack as a view) for every part."""
        sizes = list(self.parts.values())
        for parameter_name, parameter in self.named_parameters():
            for part, rows in zip(self.parts, parameter.split(sizes), strict=True):
                yield f"{part}.{parameter_name}", rows
