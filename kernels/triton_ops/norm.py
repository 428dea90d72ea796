"""RMS normalisation, alone and fused with the residual addition: y = x / sqrt(mean(x^2) + eps) * weight.

One program owns a row and keeps it in registers between the two passes (sum of squares, scaling), so each input is
read once and each output written once. With the residual that is four rows of traffic; done as two operations
(add, then norm) it would be five.

    program r:   x[r] --+--> total[r] --> sum of squares --> * rsqrt * weight --> out[r]
          residual[r] --+        `------> written once

A row is summed in an order that depends on `hidden` alone, not on the number of rows.

Sources: Zhang & Sennrich 2019, Root Mean Square Layer Normalization; vLLM csrc/layernorm_kernels.cu.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_HIDDEN = 65_536
"""A row has to fit into the registers of one program."""


@triton.jit
def _normalise(x, weight, hidden, eps):
    """x fp32 [BLOCK], zeros from `hidden` on. The product is taken in the weight's dtype, as in the reference."""
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)
    return normed.to(weight.dtype).to(tl.float32) * weight.to(tl.float32)


@triton.jit
def rms_norm_kernel(x, weight, out, inner, hidden, eps, x_outer_stride, x_inner_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    start = row // inner * x_outer_stride + row % inner * x_inner_stride
    values = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
    y = _normalise(values, tl.load(weight + column, mask=inside, other=0.0), hidden, eps)
    tl.store(out + row * hidden + column, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def fused_add_rms_norm_kernel(
    x, residual, weight, out, total, hidden, eps, x_row_stride, residual_row_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    addend = tl.load(x + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
    carried = tl.load(residual + row * residual_row_stride + column, mask=inside, other=0.0).to(tl.float32)
    summed = (addend + carried).to(total.dtype.element_ty)
    tl.store(total + row * hidden + column, summed, mask=inside)
    # Normalise what was stored, not the exact sum: the next layer will see the rounded one.
    y = _normalise(summed.to(tl.float32), tl.load(weight + column, mask=inside, other=0.0), hidden, eps)
    tl.store(out + row * hidden + column, y.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    hidden = x.shape[-1]
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    if out.numel():
        rows = x.view(1, 1, hidden) if x.dim() == 1 else x.unsqueeze(0) if x.dim() == 2 else x.flatten(0, -3)
        grid = (rows.shape[0] * rows.shape[1],)
        strides = rows.stride(0), rows.stride(1)
        rms_norm_kernel[grid](rows, weight, out, rows.shape[1], hidden, eps, *strides, **_config(hidden))
    return out


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    tokens, hidden = x.shape
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    total = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, residual.dtype), device=x.device)
    if out.numel():
        strides = x.stride(0), residual.stride(0)
        fused_add_rms_norm_kernel[(tokens,)](
            x, residual, weight, out, total, hidden, eps, *strides, **_config(hidden)
        )
    return out, total


def _config(hidden: int) -> dict[str, int]:
    """Warps so that a thread holds 16 elements: two 16-byte loads of bf16 in flight for each input."""
    block = triton.next_power_of_2(hidden)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


def unsupported_rms_norm(x: Tensor, weight: Tensor, eps: float) -> str | None:
    return _unsupported(x, weight)


def unsupported_fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> str | None:
    return _unsupported(x, residual, weight)


def _unsupported(*tensors: Tensor) -> str | None:
    hidden = tensors[0].shape[-1]
    if hidden > MAX_HIDDEN:
        return f"rows of {hidden} do not fit into registers; up to {MAX_HIDDEN} do"
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return "float64 is not supported; float32, float16 and bfloat16 are"
    return None


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    hidden = torch.empty(8192, 4096, dtype=torch.bfloat16, device="meta")
    residual = torch.empty(8192, 4096, dtype=torch.float32, device="meta")
    weight = torch.empty(4096, dtype=torch.bfloat16, device="meta")
    qkv = torch.empty(8192, 48, 128, dtype=torch.bfloat16, device="meta")
    return {
        "bf16": lambda: (rms_norm(hidden, weight, 1e-5), fused_add_rms_norm(hidden, hidden, weight, 1e-5)),
        "bf16, fp32 residual": lambda: fused_add_rms_norm(hidden, residual, weight, 1e-5),
        "bf16, heads of 128": lambda: rms_norm(qkv[:, :32], weight[:128], 1e-6),
    }
