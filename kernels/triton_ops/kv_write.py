"""Storing a step's keys and values in the blocks of the cache, quantised if the cache is.

    slot_mapping   17   -1   40            slot = block_id * block_size + offset, -1 is padding
                    |    x    |
    program (token, part): the tile [kv_heads, head_dim] of a token goes to kv[block, part, :, offset, :]

Part 0 is the keys, part 1 the values. A token's heads lie behind each other in the source and a block apart in the
target: reads are one run of kv_heads * head_dim elements, writes are runs of head_dim.

    float8_e4m3fn   x / scale[part], given for the whole cache (static), saturating at 448
    int8            x / scale with scale = max|x| / 127 of this token's head, which is stored along: a cache needs
                    no calibration, and a token with large values spoils only itself

Sources: vLLM csrc/cache_kernels.cu; per-token scales: ZeroQuant (Yao et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_ops.quantise import round_half_even, to_e4m3

CACHE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8)


@triton.jit
def reshape_and_cache_kernel(
    key,
    value,
    kv,
    slot_mapping,
    kv_scale,
    kv_heads,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    kv_block_stride,
    kv_part_stride,
    kv_head_stride,
    scale_block_stride,
    scale_part_stride,
    scale_head_stride,
    QUANTISED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    DIM_PADDED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot = tl.load(slot_mapping + token)
    if slot < 0:
        return
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE

    head = tl.arange(0, HEADS_PADDED)
    dim = tl.arange(0, DIM_PADDED)[None, :]
    inside = (head < kv_heads)[:, None] & (dim < HEAD_DIM)
    if part == 0:
        x = tl.load(key + token * key_token_stride + head[:, None] * key_head_stride + dim, inside, 0.0)
    else:
        x = tl.load(value + token * value_token_stride + head[:, None] * value_head_stride + dim, inside, 0.0)

    row = kv + block * kv_block_stride + part * kv_part_stride + head * kv_head_stride + offset * HEAD_DIM
    target = row[:, None] + dim
    if QUANTISED == "fp8":
        scale = tl.load(kv_scale + part)
        tl.store(target, to_e4m3(tl.div_rn(x.to(tl.float32), tl.broadcast_to(scale, x.shape))), inside)
    elif QUANTISED == "int8":
        x = x.to(tl.float32)
        scale = tl.div_rn(tl.max(tl.abs(x), axis=1), tl.full([HEADS_PADDED], 127.0, tl.float32))
        has_nan = tl.max((x != x).to(tl.int32), axis=1) > 0
        scale = tl.where(has_nan, float("nan"), scale)  # a maximum may drop NaN; the reader must see it
        scales = kv_scale + block * scale_block_stride + part * scale_part_stride + head * scale_head_stride
        tl.store(scales + offset, scale, head < kv_heads)
        divisor = tl.where(scale > 0, scale, 1.0)[:, None]
        tl.store(target, round_half_even(tl.div_rn(x, tl.broadcast_to(divisor, x.shape))).to(tl.int8), inside)
    else:
        tl.store(target, x.to(tl.float32).to(kv.dtype.element_ty), inside)


def reshape_and_cache(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Tensor | None = None
) -> None:
    tokens, kv_heads, head_dim = key.shape
    if tokens == 0:
        return
    quantised = {torch.float8_e4m3fn: "fp8", torch.int8: "int8"}.get(kv.dtype, "no")
    cache = kv.view(torch.uint8) if quantised == "fp8" else kv
    scale_strides = kv_scale.stride()[:3] if quantised == "int8" and kv_scale is not None else (0, 0, 0)
    reshape_and_cache_kernel[(tokens, 2)](
        *(key, value, cache, slot_mapping, kv_scale, kv_heads),
        *(*key.stride()[:2], *value.stride()[:2], *cache.stride()[:3], *scale_strides),
        QUANTISED=quantised,
        BLOCK_SIZE=kv.shape[3],
        HEAD_DIM=head_dim,
        HEADS_PADDED=triton.next_power_of_2(kv_heads),
        DIM_PADDED=triton.next_power_of_2(head_dim),
        num_warps=4 if kv_heads * head_dim >= 1024 else 1,
    )


def unsupported_reshape_and_cache(key: Tensor, value: Tensor, kv: Tensor, *_: Tensor | None) -> str | None:
    if kv.dtype not in CACHE_DTYPES:
        return f"a cache of {kv.dtype} is not supported; supported: {', '.join(map(str, CACHE_DTYPES))}"
    if key.dtype == torch.float64:
        return "float64 is not supported; float32, float16 and bfloat16 are"
    return None


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    qkv = torch.empty(8192, 48, 128, dtype=torch.bfloat16, device="meta")
    slots = torch.empty(8192, dtype=torch.int64, device="meta")

    def write(dtype: torch.dtype, *scale_shape: int) -> None:
        kv = torch.empty(1000, 32, 2, 8, 16, 128, dtype=dtype, device="meta")[:, 0]
        scale = torch.empty(scale_shape, device="meta") if scale_shape else None
        reshape_and_cache(qkv[:, 32:40], qkv[:, 40:], kv, slots, scale)

    return {
        "bf16": lambda: write(torch.bfloat16),
        "bf16 to fp8": lambda: write(torch.float8_e4m3fn, 2),
        "bf16 to int8": lambda: write(torch.int8, 1000, 2, 8, 16),
    }
