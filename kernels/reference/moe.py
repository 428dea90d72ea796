"""One matrix per group of rows: the experts of a mixture, after tokens were sorted by expert."""

from __future__ import annotations

from torch import Tensor

from kernels.reference.precision import wide


def grouped_linear(x: Tensor, weight: Tensor, group_ends: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], weight.shape[1])
    start = 0
    for group, end in enumerate(group_ends.tolist()):
        out[start:end] = (wide(x[start:end]) @ wide(weight[group]).T).to(x.dtype)
        start = end
    return out
