"""The gated activation of Llama's feed-forward layer (SwiGLU): y = silu(gate) * up, silu(g) = g / (1 + exp(-g)).

    x [T, 2 n]   row t:  | gate 0 .. n-1 | up 0 .. n-1 |        program (t, j) makes BLOCK elements of row t

Nothing is reused, so the limit is memory: 2 n elements in, n out. One pass instead of torch's two (silu, then a
product over a stored intermediate) saves two fifths of the traffic.

Source: Shazeer 2020, GLU Variants Improve Transformer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def silu_and_mul_kernel(x, out, n, x_row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    gate = tl.load(x + row * x_row_stride + column, mask=inside).to(tl.float32)
    up = tl.load(x + row * x_row_stride + n + column, mask=inside).to(tl.float32)
    y = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=inside)


def silu_and_mul(x: Tensor) -> Tensor:
    rows = x.flatten(0, -2)
    n = x.shape[-1] // 2
    out = torch.empty(*x.shape[:-1], n, dtype=x.dtype, device=x.device)
    if out.numel():
        grid = (rows.shape[0], triton.cdiv(n, BLOCK))
        silu_and_mul_kernel[grid](rows, out, n, rows.stride(0), BLOCK=BLOCK)
    return out


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    gate_up = torch.empty(8192, 2 * 14336, dtype=torch.bfloat16, device="meta")
    return {"bf16": lambda: silu_and_mul(gate_up)}
