"""8-bit integer weights, one scale per output channel: W8A8, where activations are rounded too, token by token.

    y[t, n] = (sum over k of xq[t, k] * qweight[n, k]) * max|x[t]| / 127 * scale[n]

The sum is over integers, so it is exact and the product is the fastest of all. What it costs is accuracy where one
activation of a token is far larger than the rest: they all share its scale (`llm_int8.py`, `quantizer/smoothquant.py`).

Source: vLLM compressed_tensors/schemes/compressed_tensors_w8a8_int8.py.
"""

from __future__ import annotations

from torch import Tensor

from engine.layers.linear import Linear
from kernels import ops


def use_int8(layer: Linear, qweight: Tensor, scale: Tensor) -> None:
    """Give the layer its matrix: int8 [N, K] and one scale per row, [N] or [N, 1]."""
    layer.qweight = qweight.contiguous()
    layer.scale = scale.float().reshape(-1).contiguous()


class Int8LinearMethod:
    """W8A8 with the layer's `qweight` and `scale`; subclasses say where these come from."""

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        y = ops.int8_linear(x, layer.qweight, layer.scale)
        return y if layer.bias is None else y.add_(layer.bias)

    def is_recordable(self, layer: Linear) -> bool:
        return layer.bias is None
