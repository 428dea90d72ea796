"""A few tokens times a 4-bit matrix on the GPU: launches of int4_gemv.cu."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.cuda.launch import FLOATS, kernel, launch
from prep_common.text import counted

WARP = 32
WARPS = 4
COLUMNS = 8
"""Weights in a 32-bit word, the unit that a lane loads."""
MAX_TOKENS = 8
WORDS_IN_FLIGHT = 8
"""ROWS * UNROLL of a lane: a kilobyte for each warp."""


def int4_linear(
    x: Tensor,
    qweight: Tensor,
    scale: Tensor,
    zero: Tensor,
    group_size: int,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    if reason := unsupported_int4_linear(x, qweight, scale, zero, group_size, out_dtype):
        raise ValueError(reason)  # the registry asks once, but each layer may have its own groups
    tokens, columns = x.shape
    rows = qweight.shape[0]
    if x.stride(0) % COLUMNS or x.data_ptr() % (COLUMNS * x.element_size()):
        x = x.contiguous()
    out = torch.empty(tokens, rows, dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    # More rows for a warp once x is what passes the L1 most: each row uses the same values of x.
    rows_of_warp = 1 if tokens == 1 else 2 if tokens <= 4 else 4
    sizes = {"TOKENS": tokens, "ROWS": rows_of_warp, "UNROLL": WORDS_IN_FLIGHT // rows_of_warp}
    gemv = kernel("int4_gemv.cu", "int4_gemv", "pppppliii", SCALAR=x.dtype, SCALE=scale.dtype, **sizes)
    arguments = (x, qweight, scale, zero, out, x.stride(0), rows, columns, group_size)
    grid = (-(-rows // (rows_of_warp * WARPS)),)
    launch(gemv, *arguments, grid=grid, block=(WARPS * WARP,), device=x.device)
    return out


def unsupported_int4_linear(
    x: Tensor,
    qweight: Tensor,
    scale: Tensor,
    zero: Tensor,
    group_size: int,
    out_dtype: torch.dtype | None = None,
) -> str | None:
    if x.dtype not in FLOATS or scale.dtype not in FLOATS:
        return f"x in {x.dtype}, scale in {scale.dtype}; supported: float32, float16, bfloat16"
    if out_dtype not in (None, x.dtype):
        return f"results in {out_dtype} of x in {x.dtype}; triton has them"
    if x.shape[0] > MAX_TOKENS:
        return f"{x.shape[0]} tokens; up to {MAX_TOKENS} are supported, triton takes more"
    if group_size % COLUMNS:
        return f"group_size {group_size}; supported: multiples of {COLUMNS}"
    if not all(tensor.is_contiguous() for tensor in (qweight, scale, zero)) or qweight.data_ptr() % 4:
        return "qweight, scale or zero that are not contiguous"
    return None


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def case(tokens: int, dtype: torch.dtype) -> Callable[[], object]:
        x = torch.empty(tokens, 4096, dtype=dtype, device="meta")
        qweight = torch.empty(14336, 2048, dtype=torch.uint8, device="meta")
        scale = torch.empty(14336, 32, dtype=dtype, device="meta")
        return lambda: int4_linear(x, qweight, scale, scale.to(torch.uint8), 128)

    bf16 = {f"bf16, {counted(tokens, 'token')}": case(tokens, torch.bfloat16) for tokens in (1, 4, 8)}
    return {**bf16, "fp16, 1 token": case(1, torch.float16), "fp32, 1 token": case(1, torch.float32)}
