"""Paged attention: each row goes to the kernel made for its number of queries.

    one query      `split_kv_decode.py`      waits for memory: keys are split over programs
    more           `unified_attention.py`    waits for arithmetic: queries are split over programs

A batch may hold both kinds. Each kernel skips the rows of the other, so that which one computes a row, and hence its
bits, depends on the row alone and not on its company.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.triton_ops import unified_attention as prefill
from kernels.triton_ops.paged_tile import QUANTISED, TYPES
from kernels.triton_ops.split_kv_decode import split_kv_decode
from kernels.triton_ops.unified_attention import unified_attention

MAX_HEAD_DIM = 256
FP8_ARCH = (8, 9)
"""The first compute capability that converts fp8 in hardware."""


def paged_attention(query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any) -> Tensor:
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    if query.numel() == 0 or batch.seq_lens.shape[0] == 0:
        return out
    inputs = (query, kv, batch, out)
    if batch.max_query_len != 1:
        unified_attention(*inputs, **options)
    split_kv_decode(*inputs, **options)
    return out


def unsupported_paged_attention(
    query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any
) -> str | None:
    head_dim = query.shape[2]
    if head_dim > MAX_HEAD_DIM:
        return f"head_dim {head_dim} does not fit into registers; up to {MAX_HEAD_DIM} do"
    if query.dtype not in TYPES:
        return f"queries of {query.dtype} are not supported; float32, float16 and bfloat16 are"
    if kv.dtype not in (*TYPES, *QUANTISED):
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in (*TYPES, *QUANTISED))
        return f"a cache of {kv.dtype} is not supported; supported: {known}"
    if kv.dtype == torch.float8_e4m3fn and query.is_cuda:
        capability = torch.cuda.get_device_capability(query.device)
        if capability < FP8_ARCH:
            return f"an fp8 cache needs compute capability 8.9, this GPU has {'.'.join(map(str, capability))}"
    return None


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def attend(
        dtype: torch.dtype,
        cache_dtype: torch.dtype | None = None,
        heads: int = 32,
        kv_heads: int = 8,
        head_dim: int = 128,
        block_size: int = 16,
    ) -> None:
        qkv = torch.empty(8192, heads + 2 * kv_heads, head_dim, dtype=dtype, device="meta")
        shape = (1000, 32, 2, kv_heads, block_size, head_dim)
        kv = torch.empty(shape, dtype=cache_dtype or dtype, device="meta")[:, 0]
        scale = torch.empty(shape[:-1], device="meta")[:, 0] if cache_dtype == torch.int8 else None
        if cache_dtype == torch.float8_e4m3fn:
            scale = torch.empty(2, device="meta")
        integers = torch.empty(65, dtype=torch.int32, device="meta")
        table = torch.empty(64, 512, dtype=torch.int32, device="meta")
        batch = AttentionBatch(integers, integers[:64], table)
        paged_attention(qkv[:, :heads], kv, batch, scale=head_dim**-0.5, kv_scale=scale)

    cases: dict[str, Callable[[], object]] = {
        "bf16": lambda: attend(torch.bfloat16),
        "bf16, 14/2 heads of 64": lambda: attend(torch.bfloat16, heads=14, kv_heads=2, head_dim=64),
        "fp16, 32/32 heads of 80": lambda: attend(torch.float16, heads=32, kv_heads=32, head_dim=80),
        "bf16, int8 cache": lambda: attend(torch.bfloat16, torch.int8),
        "fp32": lambda: attend(torch.float32),
    }
    if arch >= 90:
        cases["bf16, pages of 64"] = partial(_with_tma, partial(attend, torch.bfloat16, block_size=64))
    if arch >= 89:
        cases["bf16, fp8 cache"] = lambda: attend(torch.bfloat16, torch.float8_e4m3fn)
    return cases


def _with_tma(call: Callable[[], object]) -> object:
    """Call as on a GPU with descriptors."""
    with patch.object(prefill, "has_tma", lambda kv: True):
        return call()
