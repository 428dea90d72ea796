"""W8A8 in e4m3: round the tokens' rows on the way in, multiply in fp8, scale the sums.

    dynamic   row_scale[t] = max|x[t]| / 448        static   row_scale[t] = input_scale, known from calibration
    xq[t, k] = e4m3(x[t, k] / row_scale[t])         then `w8a8.py`

With a static scale no maximum has to be found and what lies beyond saturates at 448. Rounding goes through
`quantise.to_e4m3`, the same bits on every device.

Source: FP8 Formats for Deep Learning (Micikevicius et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.quantise import E4M3_MAX, scale_of_row, to_e4m3
from kernels.triton_ops.split_k import unlike
from kernels.triton_ops.w8a8 import w8a8_product

BLOCK = 2048
MIN_CAPABILITY = (8, 9)


@triton.jit
def quantise_fp8_kernel(x, xq, row_scale, input_scale, k, x_stride, BLOCK: tl.constexpr):
    """Program t rounds row t to the bits of e4m3 (uint8)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    if input_scale is None:
        scale = scale_of_row(x + row * x_stride, k, E4M3_MAX, BLOCK)
    else:
        scale = tl.load(input_scale)
    tl.store(row_scale + row, scale)
    step = tl.where(scale > 0, scale, 1.0)  # a row of zeros has scale 0
    for start in range(0, k, BLOCK):
        inside = columns < k - start
        values = tl.load(x + row * x_stride + start + columns, mask=inside, other=0).to(tl.float32)
        tl.store(xq + row * k + start + columns, to_e4m3(tl.div_rn(values, step)), mask=inside)


def fp8_linear(x: Tensor, qweight: Tensor, scale: Tensor, input_scale: Tensor | None = None) -> Tensor:
    num_tokens, k = x.shape
    xq = torch.empty(num_tokens, k, dtype=torch.uint8, device=x.device)
    row_scale = torch.empty(num_tokens, dtype=torch.float32, device=x.device)
    if num_tokens:
        block = min(triton.next_power_of_2(k), BLOCK)
        quantise_fp8_kernel[(num_tokens,)](
            x, xq, row_scale, input_scale, k, x.stride(0), BLOCK=block, num_warps=8
        )
    return w8a8_product(xq.view(torch.float8_e4m3fn), row_scale, qweight, scale, x.dtype)


def unsupported_fp8_linear(x: Tensor, *_: Tensor | None) -> str | None:
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < MIN_CAPABILITY:
        return "fp8 needs compute capability 8.9 (Ada, Hopper) or newer"
    return unlike("x", x)


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    if arch < 89:
        return {}

    def case(num_tokens: int, num_columns: int, k: int, static: bool) -> Callable[[], object]:
        x = torch.empty(num_tokens, k, dtype=torch.bfloat16, device="meta")
        qweight = torch.empty(num_columns, k, dtype=torch.float8_e4m3fn, device="meta")
        input_scale = torch.empty(1, device="meta") if static else None
        return lambda: fp8_linear(x, qweight, torch.empty(num_columns, device="meta"), input_scale)

    return {
        "decode 64 dynamic": case(64, 4096, 14336, static=False),
        "prefill static": case(2048, 28672, 4096, static=True),
    }
