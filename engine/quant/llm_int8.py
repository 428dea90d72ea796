"""LLM.int8(): 8-bit products, except for the few activations that are far larger than the rest.

    x = [ 0.3  -41.0  0.2 ]    beyond the threshold of 6:   -41.0                       times its column, in floats
                               all others:            0.3    0    0.2                   rounded with scale 0.3 / 127
                                                                                        added up

With W8A8 alone the -41 would set the scale for all: 0.3 becomes one step of 0.32. Outliers are found in every token for
itself (the paper takes a column for all tokens as soon as one of them is large), so that a token's result does not
depend on its batch. That is a small product for each token that has one: it shows the effect, it is not fast.

Sources: LLM.int8() (Dettmers et al. 2022), section 3.2; vLLM's former bitsandbytes.py with load_in_8bit.
"""

from __future__ import annotations

from torch import Tensor

from engine.layers.linear import Linear
from kernels import ops

THRESHOLD = 6.0


def llm_int8_linear(x: Tensor, qweight: Tensor, scale: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """x [T, K] times int8 weights [N, K] with scales [N]: activations beyond `threshold` are not rounded; [T, N]."""
    outlying = x.abs() > threshold
    y = ops.int8_linear(x.masked_fill(outlying, 0), qweight, scale)
    for token in outlying.any(1).nonzero().flatten().tolist():
        columns = outlying[token].nonzero().flatten()
        weights = qweight[:, columns].float() * scale[:, None]
        y[token] += (weights @ x[token, columns].float()).to(y.dtype)
    return y


class LLMInt8LinearMethod:
    """int8 with the outliers of each token in floats."""

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        y = llm_int8_linear(x, layer.qweight, layer.scale)
        return y if layer.bias is None else y.add_(layer.bias)

    def is_recordable(self, layer: Linear) -> bool:
        return False
