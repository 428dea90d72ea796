"""RMS normalisation on the GPU: launches of norm.cu."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.cuda.launch import FLOATS, kernel, launch, vector_width

WARP = 32
MAX_THREADS = 1024
MAX_PER_THREAD = 32
"""Values of the row that a thread keeps in registers: with 1024 threads it has 64."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows, hidden = _with_two_strides(x), x.shape[-1]
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    vec = vector_width(hidden, rows, weight, out)
    threads, shape = _block(hidden, vec)
    types = {"X": x.dtype, "RESIDUAL": x.dtype, "TOTAL": x.dtype, "WEIGHT": weight.dtype}
    norm = kernel("norm.cu", "rms_norm", "ppplliif", **types, **shape)
    arguments = (rows, weight, out, rows.stride(0), rows.stride(1), rows.shape[1], hidden, eps)
    launch(norm, *arguments, grid=(rows.shape[0] * rows.shape[1],), block=(threads,), device=x.device)
    return out


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    hidden = x.shape[-1]
    total = torch.empty(x.shape, dtype=torch.result_type(x, residual), device=x.device)
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    vec = vector_width(hidden, x, residual, weight, total, out)
    threads, shape = _block(hidden, vec)
    types = {"X": x.dtype, "RESIDUAL": residual.dtype, "TOTAL": total.dtype, "WEIGHT": weight.dtype}
    norm = kernel("norm.cu", "fused_add_rms_norm", "pppppllif", **types, **shape)
    arguments = (x, residual, weight, out, total, x.stride(0), residual.stride(0), hidden, eps)
    launch(norm, *arguments, grid=(x.shape[0],), block=(threads,), device=x.device)
    return out, total


def unsupported_rms_norm(x: Tensor, weight: Tensor, eps: float) -> str | None:
    return _unsupported(x.shape[-1], x, weight)


def unsupported_fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> str | None:
    return _unsupported(x.shape[-1], x, residual, weight)


def _unsupported(hidden: int, *tensors: Tensor) -> str | None:
    if any(tensor.dtype not in FLOATS for tensor in tensors):
        dtypes = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        return f"dtypes {dtypes}; supported: float32, float16, bfloat16"
    if hidden > (most := MAX_THREADS * MAX_PER_THREAD):
        return f"rows of {hidden}; a block holds rows of up to {most} in its registers"
    return None


def _with_two_strides(x: Tensor) -> Tensor:
    """x as [outer, inner, hidden]: heads in a fused qkv tensor stay where they are."""
    if x.dim() > 3:
        return x.flatten(0, -3)  # copies what has no common stride
    return x.reshape(*(1,) * (3 - x.dim()), *x.shape)


def _block(hidden: int, vec: int) -> tuple[int, dict[str, int]]:
    """(threads, defines) for a row, chosen by its length only: so the order of additions is fixed.

    Two loads each are better than twice the threads: they are in flight together, and fewer threads meet sooner.
    """
    loads = -(-hidden // vec)
    threads = WARP
    while threads < MAX_THREADS and loads > 2 * threads:
        threads *= 2
    return threads, {"VEC": vec, "THREADS": threads, "ROUNDS": -(-loads // threads)}


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def case(dtype: torch.dtype, hidden: int) -> Callable[[], object]:
        x = torch.empty(8192, hidden, dtype=dtype, device="meta")
        weight = torch.empty(hidden, dtype=dtype, device="meta")
        return lambda: (rms_norm(x, weight, 1e-5), fused_add_rms_norm(x, x, weight, 1e-5))

    return {
        "bf16, 4096": case(torch.bfloat16, 4096),
        "fp16, 4096": case(torch.float16, 4096),
        "fp32, 4096": case(torch.float32, 4096),
        "bf16, 16384": case(torch.bfloat16, 16384),
    }
