"""Offsets are computed in 64 bits: arguments whose rows, heads or blocks are more than 2**32 numbers apart.

Only the pages of the memory that are written exist. An offset that is cut to 32 bits stays inside of it, so that a
fault gives wrong numbers and not a crash.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cpu import build
from kernels.ops import AttentionBatch

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu import (
    activation,
    attention,
    embedding,
    gated_linear,
    int4,
    int8,
    kv_write,
    linear,
    lora,
    norm,
    norm_linear,
    rotary,
    sampling,
)

FAR = 2**32
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE, which Python names from 3.13 on: the memory is not counted before it is written."""
HIDDEN = 96


def far(x: Tensor, dim: int) -> Tensor:
    """Return a copy whose entries of `dim` are each more than 2**32 numbers apart."""
    strides = list(x.stride())
    strides[dim] = FAR + (x.numel() // 64 + 1) * 64
    size = 1 + sum((length - 1) * stride for length, stride in zip(x.shape, strides, strict=True))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = mmap.mmap(-1, size * x.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, strides).copy_(x)


def wrote(function: Callable[..., None], target: int, *arguments: Any) -> Tensor:
    """Return the argument that the function writes to."""
    function(*arguments)
    written: Tensor = arguments[target]
    return written.clone()


def attend(query: Tensor, kv: Tensor, table: Tensor, kv_scale: Tensor | None) -> Tensor:
    starts, lengths = torch.tensor([0, 1, 2]).int(), torch.tensor([16, 16]).int()
    return attention.paged_attention(
        query, kv, AttentionBatch(starts, lengths, table), scale=0.1, kv_scale=kv_scale
    )


def rotated(weight: Any, x: Tensor, residual: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return norm_linear.norm_linear(
        x, residual, torch.ones(HIDDEN, dtype=x.dtype), 1e-5, weight, rotary=(cos, sin, 2, 32)
    )


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def products() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[int, tuple[int, ...]]]]:
    """Return the products with matrices, each for few rows and for many."""
    found: dict[str, Any] = {}
    codes, scale = torch.randint(-127, 128, (64, HIDDEN), dtype=torch.int8), drawn(64).abs()
    nibbles = torch.randint(0, 256, (64, HIDDEN // 2), dtype=torch.uint8)
    # Zero points other than 8: with it, the sums of x that they are multiplied with would not count.
    groups, zeros = drawn(64, 3).abs(), torch.arange(192).view(64, 3).remainder(8).to(torch.uint8)
    for dtype in (torch.float32, torch.bfloat16):
        weight = drawn(64, HIDDEN, dtype=dtype)
        plain, gated = linear.pack_weight(weight), gated_linear.pack_weight(weight)
        in_bytes = int8.pack_int8_weight(codes, scale)
        in_nibbles = int4.pack_int4_weight(nibbles, groups, zeros, 32)
        for rows in (
            2,
            21,
            40,
        ):  # 21: their stride is a multiple of 4 KiB, and `gemm.h` copies them side by side
            x, angles = drawn(rows, HIDDEN, dtype=dtype), drawn(rows, 16)
            name = f"{dtype}, {rows} rows".removeprefix("torch.")
            found |= {
                f"linear, {name}": (linear.linear, (x, plain), {0: (0,)}),
                f"gated_linear, {name}": (gated_linear.gated_linear, (x, gated), {0: (0,)}),
                f"int8_linear, {name}": (int8.int8_linear, (x, in_bytes), {0: (0,)}),
                f"int4_linear, {name}": (int4.int4_linear, (x, in_nibbles), {0: (0,)}),
                f"norm_linear, {name}": (
                    partial(rotated, plain), (x, x.flip(0), angles, angles + 1), {0: (0,), 1: (0,), 2: (0,), 3: (0,)}
                ),
            }  # fmt: skip
    return found


def by_rank(matrix: Tensor) -> Tensor:
    """Return a copy with its last two dimensions in the other order in memory."""
    return matrix.transpose(-1, -2).contiguous().transpose(-1, -2)


def adapters() -> dict[str, Any]:
    kinds = {
        "fp32": (torch.float32, torch.float32),
        "mixed": (torch.float32, torch.bfloat16),
        "bf16": (torch.bfloat16, torch.bfloat16),
    }
    found: dict[str, Any] = {}
    of_tokens, scaling = torch.tensor([0, 1, 1, 0, 1]).int(), torch.tensor([0.5, 2.0])
    for name, (values, weights) in kinds.items():
        x, a = drawn(5, HIDDEN, dtype=values), drawn(2, 2, 8, HIDDEN, dtype=weights)
        y, b = drawn(5, 96, dtype=values), drawn(2, 96, 8, dtype=weights)
        # The kernels' form depends on the dimension that is contiguous, so that this one stays as it is.
        for kind, contiguous, apart in (("", (a, b), (2, 1)), (" by rank", (by_rank(a), by_rank(b)), (3, 2))):
            found[f"lora_shrink, {name}{kind}"] = (
                lora.lora_shrink, (x, contiguous[0], of_tokens), {0: (0,), 1: (0, 1, apart[0])}
            )  # fmt: skip
            found[f"lora_expand, {name}{kind}"] = (
                lambda shrunk, part, out: wrote(lora.lora_expand, 3, shrunk, [part], of_tokens, out, scaling),
                (drawn(1, 5, 8), contiguous[1], y), {0: (1,), 1: (0, apart[1]), 2: (0,)},
            )  # fmt: skip
        shrunk = drawn(2, 5, 8)
        found[f"lora_expand of two matrices, {name}"] = (
            lambda shrunk, first, second, out: wrote(
                lora.lora_expand, 3, shrunk, [first, second], of_tokens, out, scaling
            ),
            (shrunk, b[:, :48], b[:, 48:], y), {0: (0, 1)},
        )  # fmt: skip
    return found


def others() -> dict[str, Any]:
    x, y, angles = drawn(3, 64), drawn(3, 64) + 1, drawn(3, 8)
    heads, keys, values = drawn(3, 2, 16), drawn(32, 2, 16), drawn(32, 2, 16) + 1
    kv, kv_scale, slots = torch.zeros(2, 2, 2, 16, 16), torch.zeros(2, 2, 2, 16), torch.arange(32)
    stored, stored_scale = torch.zeros(kv.shape, dtype=torch.int8), kv_scale.clone()
    kv_write.reshape_and_cache(keys, values, stored, slots, stored_scale)
    table = torch.tensor([[0], [1]]).int()  # a read beside it finds 0: memory that was not written
    rows, draws = drawn(3, 64), (torch.ones(3), torch.zeros(3).int(), torch.ones(3), torch.zeros(3))
    draws = (*draws, torch.arange(6).view(3, 2).int())
    masks = torch.tensor([[1, 2], [3, 4], [5, 6]]).int()
    found: dict[str, Any] = {
        "rms_norm of rows": (norm.rms_norm, (x, y[0], 1e-5), {0: (0,)}),
        "rms_norm of heads": (norm.rms_norm, (heads, y[0, :16], 1e-5), {0: (0, 1)}),
        "fused_add_rms_norm": (norm.fused_add_rms_norm, (x, y, y[0], 1e-5), {0: (0,), 1: (0,)}),
        "rotary_embedding": (
            rotary.rotary_embedding, (heads, angles, angles + 1), {0: (0, 1), 1: (0,), 2: (0,)}
        ),
        "silu_and_mul": (activation.silu_and_mul, (x,), {0: (0,)}),
        "embedding": (embedding.embedding, (x, torch.tensor([2, 0])), {0: (0,)}),
        "paged_attention": (attend, (drawn(2, 2, 16), stored, table, stored_scale),
                            {0: (0, 1), 1: (0,), 2: (0,), 3: (0,)}),
        "sample": (sampling.sample, (rows, *draws), {0: (0,)}),
        "apply_token_bitmask": (
            partial(wrote, sampling.apply_token_bitmask, 0), (rows, masks), {0: (0,), 1: (0,)}
        ),
    }  # fmt: skip
    write = partial(wrote, kv_write.reshape_and_cache)
    for name, cache, scales in (("fp32", kv, None), ("int8", stored, kv_scale)):
        arguments = (keys, values, torch.zeros_like(cache), slots, scales)
        found[f"reshape_and_cache, {name}"] = (
            partial(write, 2), arguments, {0: (0, 1), 1: (0, 1), 2: (0,)}
        )  # fmt: skip
    found["reshape_and_cache, scales"] = (
        partial(write, 4), (keys, values, torch.zeros_like(stored), slots, kv_scale), {4: (0,)}
    )  # fmt: skip
    return found


CASES = [
    pytest.param(function, arguments, place, dim, id=f"{name}, argument {place}, dimension {dim}")
    for name, (function, arguments, places) in (others() | products() | adapters()).items()
    for place, dims in places.items()
    for dim in dims
]


@pytest.mark.parametrize(("function", "arguments", "place", "dim"), CASES)
def test_numbers_that_lie_far_apart_give_the_same_bits(
    function: Callable[..., Any], arguments: tuple[Any, ...], place: int, dim: int
) -> None:
    copies = [
        [argument.clone() if isinstance(argument, Tensor) else argument for argument in arguments]
        for _ in range(2)
    ]
    copies[1][place] = far(arguments[place], dim)
    near, spread = (function(*copy) for copy in copies)
    for one, other in zip(
        *((each,) if isinstance(each, Tensor) else each for each in (near, spread)), strict=True
    ):
        assert torch.equal(one, other)
