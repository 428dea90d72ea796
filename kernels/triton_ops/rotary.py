"""Rotary position embedding: rotate pairs of dimensions by an angle that grows with the token's position.

    x' = x cos - y sin      with x dimension i < rotary_dim / 2, and y its partner i + rotary_dim / 2 (NeoX layout)
    y' = y cos + x sin

A dot product of a query at position p with a key at position q then depends on p - q only. One program rotates all
heads of a token, so that its row of cos and sin is loaded once:

    heads  | x x x x | y y y y | pass through |     one tile [heads, rotary_dim / 2] for x, one for y
           0     rotary_dim / 2   rotary_dim  head_dim

Source: Su et al. 2021, RoFormer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rotary_embedding_kernel(
    x,
    cos,
    sin,
    out,
    heads,
    x_token_stride,
    x_head_stride,
    cos_token_stride,
    sin_token_stride,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    REST_PADDED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_PADDED)[:, None]
    source = x + token * x_token_stride + head * x_head_stride
    target = out + (token * heads + head) * HEAD_DIM

    pair = tl.arange(0, HALF_PADDED)
    real = pair < HALF
    c = tl.load(cos + token * cos_token_stride + pair, mask=real, other=0.0)[None, :]
    s = tl.load(sin + token * sin_token_stride + pair, mask=real, other=0.0)[None, :]
    inside = (head < heads) & real[None, :]
    first = tl.load(source + pair[None, :], mask=inside).to(tl.float32)
    second = tl.load(source + HALF + pair[None, :], mask=inside).to(tl.float32)
    tl.store(target + pair[None, :], (first * c - second * s).to(out.dtype.element_ty), mask=inside)
    tl.store(target + HALF + pair[None, :], (second * c + first * s).to(out.dtype.element_ty), mask=inside)

    if 2 * HALF < HEAD_DIM:
        rest = 2 * HALF + tl.arange(0, REST_PADDED)[None, :]
        inside = (head < heads) & (rest < HEAD_DIM)
        tl.store(target + rest, tl.load(source + rest, mask=inside), mask=inside)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    tokens, heads, head_dim = x.shape
    half = cos.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        rotary_embedding_kernel[(tokens,)](
            *(x, cos, sin, out, heads),
            *(x.stride(0), x.stride(1), cos.stride(0), sin.stride(0)),
            HEAD_DIM=head_dim,
            HALF=half,
            HEADS_PADDED=triton.next_power_of_2(heads),
            HALF_PADDED=triton.next_power_of_2(half),
            REST_PADDED=triton.next_power_of_2(max(head_dim - 2 * half, 1)),
        )
    return out


def unsupported_rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    if x.dtype == torch.float64:
        return "float64 is not supported; float32, float16 and bfloat16 are"
    return None


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    qkv = torch.empty(8192, 48, 128, dtype=torch.bfloat16, device="meta")
    angles = torch.empty(8192, 64, device="meta")
    return {
        "bf16, all of 128": lambda: rotary_embedding(qkv[:, :40], angles, angles),
        "bf16, 32 of 128": lambda: rotary_embedding(qkv[:, :40], angles[:, :16], angles[:, :16]),
    }
