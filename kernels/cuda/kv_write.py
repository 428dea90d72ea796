"""Writing to the paged cache on the GPU: launches of kv_write.cu."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.cuda.launch import FLOATS, QUANTISED, kernel, launch, quantised_defines, vector_width

WARPS = 4


def reshape_and_cache(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Tensor | None = None
) -> None:
    num_tokens, num_heads, head_dim = key.shape
    arguments = (
        *(key, value, kv, slot_mapping, kv_scale),
        *(key.stride(0), key.stride(1), value.stride(0), value.stride(1), kv.stride(0)),
        0 if kv_scale is None or kv.dtype != torch.int8 else kv_scale.stride(0),
        num_heads,
    )
    grid = (num_tokens, -(-num_heads // WARPS))
    types = {"SCALAR": key.dtype, "CACHE": kv.dtype, **quantised_defines(kv.dtype)}
    write = kernel(
        "kv_write.cu",
        "kv_write",
        "ppppplllllli",
        **types,
        VEC=vector_width(head_dim, key, value, kv),
        HEAD_DIM=head_dim,
        BLOCK_SIZE=kv.shape[3],
    )
    launch(write, *arguments, grid=grid, block=(WARPS * 32,), device=kv.device)


def unsupported_reshape_and_cache(key: Tensor, value: Tensor, kv: Tensor, *_: Tensor | None) -> str | None:
    if key.dtype not in FLOATS or kv.dtype not in FLOATS + QUANTISED:
        return (
            f"keys in {key.dtype}, cache in {kv.dtype}; supported: keys in float32, float16 or bfloat16, "
            "the cache also in float8_e4m3fn or int8"
        )
    return None


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def case(dtype: torch.dtype, cached: torch.dtype) -> Callable[[], object]:
        key, value = torch.empty(2, 8192, 8, 128, dtype=dtype, device="meta")
        kv = torch.empty(1024, 2, 8, 16, 128, dtype=cached, device="meta")
        slots = torch.empty(8192, dtype=torch.int64, device="meta")
        scale = torch.empty(1024, 2, 8, 16, device="meta")
        return lambda: reshape_and_cache(key, value, kv, slots, scale)

    return {
        "bf16": case(torch.bfloat16, torch.bfloat16),
        "fp16": case(torch.float16, torch.float16),
        "fp32": case(torch.float32, torch.float32),
        "bf16 to fp8": case(torch.bfloat16, torch.float8_e4m3fn),
        "bf16 to int8": case(torch.bfloat16, torch.int8),
    }
