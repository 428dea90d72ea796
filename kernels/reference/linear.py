"""The dense product as torch does it: what runs where there is no compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from kernels.cpu.linear import PackedPairs, PackedWeight


def pack_weight(weight: Tensor) -> Tensor:
    """On a CPU in fp32 oneDNN's blocked layout, otherwise the matrix itself.

    Two things are gained over the plain matrix: products of a few rows do not re-arrange the weights each time,
    and a row's result no longer depends on how many rows there are, which BLAS does not promise (its kernels for
    one, for two or three and for more rows add in different orders).
    """
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return weight


def linear(
    x: Tensor,
    weight: Tensor | PackedWeight | PackedPairs,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    if not isinstance(weight, Tensor):
        weight = weight.to_dense()
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    if out_dtype is None or out_dtype == x.dtype:
        return F.linear(x, weight, bias)
    if x.is_cuda:  # a copy of the weights in another type would take longer than the product
        return F.linear(x, weight, bias).to(out_dtype)
    return F.linear(x.to(out_dtype), weight.to(out_dtype), None if bias is None else bias.to(out_dtype))
