"""W8A8 in integers: round each token's row to int8 on the way in, multiply in integers, scale the sums.

    row_scale[t] = max|x[t]| / 127          xq[t, k] = round(x[t, k] / row_scale[t])          then `w8a8.py`

A product of two int8 is at most 2^14, and int32 holds 2^17 of them: up to K = 133,152 the sum is exact, whatever the
order. Division and rounding are the exact ones, so that the integers are those of the reference.

Source: LLM.int8() (Dettmers et al. 2022) without outliers, SmoothQuant's dynamic per-token scheme.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.quantise import round_half_even, scale_of_row
from kernels.triton_ops.split_k import unlike
from kernels.triton_ops.w8a8 import w8a8_product

BLOCK = 2048
MAX_K = (2**31 - 1) // 127**2


@triton.jit
def quantise_int8_kernel(x, xq, row_scale, k, x_stride, BLOCK: tl.constexpr):
    """Program t rounds row t: once over the row for its largest value, once more, now from the cache, to round."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    # A NaN makes all of the row NaN, and nothing else.
    scale = scale_of_row(x + row * x_stride, k, 127.0, BLOCK)
    tl.store(row_scale + row, scale)
    step = tl.where(scale > 0, scale, 1.0)  # a row of zeros has scale 0
    for start in range(0, k, BLOCK):
        inside = columns < k - start
        values = tl.load(x + row * x_stride + start + columns, mask=inside, other=0).to(tl.float32)
        rounded = round_half_even(tl.div_rn(values, step))
        tl.store(xq + row * k + start + columns, rounded.to(tl.int8), mask=inside)


def int8_linear(x: Tensor, qweight: Tensor, scale: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    num_tokens, k = x.shape
    xq = torch.empty(num_tokens, k, dtype=torch.int8, device=x.device)
    row_scale = torch.empty(num_tokens, dtype=torch.float32, device=x.device)
    if num_tokens:
        block = min(triton.next_power_of_2(k), BLOCK)
        quantise_int8_kernel[(num_tokens,)](x, xq, row_scale, k, x.stride(0), BLOCK=block, num_warps=8)
    return w8a8_product(xq, row_scale, qweight, scale, out_dtype or x.dtype)


def unsupported_int8_linear(x: Tensor, qweight: Tensor, scale: Tensor, *_: object) -> str | None:
    if x.shape[1] > MAX_K:
        return f"{x.shape[1]} columns overflow int32; supported: up to {MAX_K}"
    return unlike("x", x)


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def case(num_tokens: int, num_columns: int, k: int) -> Callable[[], object]:
        x = torch.empty(num_tokens, k, dtype=torch.bfloat16, device="meta")
        qweight = torch.empty(num_columns, k, dtype=torch.int8, device="meta")
        return lambda: int8_linear(x, qweight, torch.empty(num_columns, device="meta"))

    return {"decode 64": case(64, 4096, 14336), "prefill": case(2048, 28672, 4096)}
