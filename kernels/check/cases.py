"""Random calls of every operation, with what breaks kernels in practice.

What is in them, where an operation can meet it: 0 and 1 rows, a page boundary and one token on either side of it,
padding slots (-1) and padding tokens, block table columns with stale ids, NaN in unwritten slots, q, k
and v as slices of one fused tensor, the cache of one layer as a strided view, 1 to 8 query heads per kv head, head_dim
32 to 128 and 80 among them, sliding windows, quantised caches, sizes that no tile divides, a row of NaN.

Sizes: `tiny` for the Triton interpreter and the host shim, which take milliseconds for each step of a loop;
`small` for the CPU; `large` for a GPU.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.check.case import Case, copy_of, dtype_name

Size = Literal["tiny", "small", "large"]
FP8 = torch.float8_e4m3fn
NAN = float("nan")
STALE = (-7, 1_000_003)
"""Block ids in columns behind the end of a row: reading through them must not happen."""


NAN_ROW = "a row of NaN"
"""Prefix in the name of a case whose first tensor gets NaN in row 1."""
OPEN_FOR_NAN = ("int8_linear", "fp8_linear", "sample", "gather_logprobs")
"""Operations whose contract does not say what becomes of a row of NaN."""

Made = Iterator[tuple[Any, ...]]
"""Name of a case and the arguments of its call."""


def cases(
    op: str, *, seed: int, size: Size = "tiny", dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Iterator[Case]:
    """All cases of an operation. Made on the CPU and then moved, so that a seed means the same everywhere."""
    draw = Draw(zlib.crc32(f"{op} {seed} {size}".encode()), dtype, size)
    for made in GENERATORS[op](draw):
        case = made if isinstance(made, Case) else Case(op, made[0], made[1:])
        if case.name.startswith(NAN_ROW):
            first = case.args[0].clone()
            first[1] = NAN
            free = frozenset([1] if op in OPEN_FOR_NAN else [])
            case = replace(case, args=(first, *case.args[1:]), free_rows=free)
        if device == "cpu":
            yield case
        elif op == "copy_blocks":
            yield from _across_devices(case, device)
        else:
            yield copy_of(case, device)


class Draw:
    """A random generator with the shapes this module needs."""

    def __init__(self, seed: int, dtype: torch.dtype, size: Size) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.size = size
        self.rows = (0, 1, 3, self.pick(5, 33, 257))

    def pick(self, tiny: int, small: int, large: int) -> int:
        """The figure for this size."""
        return {"tiny": tiny, "small": small, "large": large}[self.size]

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(dtype or self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator) * (high - low) + low

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """low .. high - 1"""
        return torch.randint(low, high, shape, generator=self.generator, dtype=torch.int64).to(dtype)

    def permutation(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.generator)

    def strided(self, rows: int, width: int) -> Tensor:
        """[rows, width], the middle columns of a wider matrix."""
        return self.normal(rows, width + 16)[:, 8 : 8 + width]

    def heads(self, tokens: int, head_dim: int, *heads: int) -> list[Tensor]:
        """Slices [tokens, heads_i, head_dim] of one fused tensor, as a merged qkv projection gives them."""
        fused = self.normal(tokens, sum(heads) * head_dim)
        parts = fused.split([each * head_dim for each in heads], dim=1)
        return [
            part.view(tokens, each, head_dim) if tokens else part.reshape(0, each, head_dim)
            for part, each in zip(parts, heads, strict=True)
        ]


# --- norm, rotary, activation, linear ------------------------------------------------------------------------


def _linear(draw: Draw) -> Made:
    for rows in (*draw.rows, 17):
        width, out = draw.pick(64, 320, 1024), draw.pick(48, 200, 1000)
        weight, bias = draw.normal(out, width), draw.normal(out)
        yield f"{rows} rows", draw.normal(rows, width), weight, bias
        yield f"{rows} strided rows, no bias", draw.strided(rows, width), weight
        rounded = weight.bfloat16().to(draw.dtype)
        yield f"{rows} rows, weights of a bf16 checkpoint", draw.normal(rows, width), rounded, bias
        odd = draw.normal(rows, 65), draw.normal(out, 65)
        yield f"{rows} rows, odd depth, fp32 results", *odd, bias, torch.float32
    yield NAN_ROW, draw.normal(3, 64), draw.normal(40, 64)


def _gated_linear(draw: Draw) -> Made:
    for rows in (*draw.rows, 17):
        for size in (24, draw.pick(48, 160, 1000)):
            width = draw.pick(64, 320, 1024)
            weight, bias = draw.normal(2 * size, width) / 8, draw.normal(2 * size)
            yield f"{rows} rows, 2 x {size}", draw.normal(rows, width), weight, bias
            yield f"{rows} strided rows, 2 x {size}, no bias", draw.strided(rows, width), weight
        yield f"{rows} rows, odd sizes", draw.normal(rows, 65), draw.normal(2 * 33, 65) / 8
    yield NAN_ROW, draw.normal(3, 64), draw.normal(80, 64)


def _norm_linear(draw: Draw) -> Made:
    """Products of few columns are cut into rows, blocks of them where there are many; wide ones into panels."""
    for rows in (*draw.rows, 17):
        width = draw.pick(64, 320, 1024)
        x, residual, norm = draw.strided(rows, width), draw.strided(rows, width), draw.normal(width)
        for columns in (40, draw.pick(200, 200, 1000)):
            weight, bias = draw.normal(columns, width) / 8, draw.normal(columns)
            yield f"{rows} rows, {columns} columns", x, residual, norm, 1e-5, weight, bias
            yield f"{rows} rows, 2 x {columns // 2}, activated", x, residual, norm, 1e-5, weight, bias, True
        for head_dim, turned in ((8, 8), (40, 40), (33, 20)):  # 8 heads, of which 6 are rotated
            weight, rotary = draw.normal(8 * head_dim, width) / 8, _rotation(draw, rows, 6, head_dim, turned)
            name = f"{rows} rows, {turned} of {head_dim} dimensions rotated"
            yield name, x, residual, norm, 1e-6, weight, draw.normal(8 * head_dim), False, rotary
            rounded = weight.bfloat16().to(draw.dtype)
            yield f"{name}, no residual, bf16 weights", x, None, norm, 1e-6, rounded, None, False, rotary
        odd = draw.normal(rows, 65), draw.normal(rows, 65), draw.normal(65)
        yield f"{rows} rows, odd depth", *odd, 1e-6, draw.normal(40, 65), None, True
    x, residual, norm = draw.normal(400, 64), draw.normal(400, 64), draw.normal(64)
    rotary = _rotation(draw, 400, 1, 16, 16)
    yield "400 rows, rotated", x, residual, norm, 1e-6, draw.normal(32, 64), None, False, rotary
    x, residual, norm = draw.normal(3, 64), draw.normal(3, 64), draw.normal(64)
    yield NAN_ROW, x, residual, norm, 1e-6, draw.normal(96, 64), None, False, _rotation(draw, 3, 2, 32, 32)


def _rotation(
    draw: Draw, rows: int, heads: int, head_dim: int, turned: int
) -> tuple[Tensor, Tensor, int, int]:
    """turned: how many dimensions of a head are rotated."""
    angle = draw.uniform(0, 100, rows, turned // 2)
    return angle.cos(), angle.sin(), heads, head_dim


def _embedding(draw: Draw) -> Made:
    for rows in draw.rows:
        for size in (64, draw.pick(72, 896, 4096)):
            yield f"{rows} of 97 x {size}", draw.strided(97, size), draw.integers(0, 97, rows)
    yield NAN_ROW, draw.normal(5, 64), torch.tensor([4, 1, 0, 0])


def _norm_shapes(draw: Draw) -> Iterator[tuple[int, int]]:
    """rows, hidden"""
    return product(draw.rows, (64, draw.pick(80, 896, 4096), draw.pick(100, 1000, 5120)))


def _rms_norm(draw: Draw) -> Made:
    for rows, hidden in _norm_shapes(draw):
        yield f"{rows} x {hidden}", draw.strided(rows, hidden), draw.normal(hidden), 1e-6
    for head_dim in (32, 80, 128):
        query, _ = draw.heads(3, head_dim, 4, 2)
        yield f"heads of {head_dim} in a fused qkv tensor", query, draw.normal(head_dim), 1e-5
    yield "fp32 rows, the weight's dtype", draw.normal(3, 64).float(), draw.normal(64), 1e-6
    yield "zeros", torch.zeros(2, 64, dtype=draw.dtype), draw.normal(64), 1e-6
    yield NAN_ROW, draw.normal(3, 96), draw.normal(96), 1e-6


def _fused_add_rms_norm(draw: Draw) -> Made:
    for rows, hidden in _norm_shapes(draw):
        x, residual = draw.strided(rows, hidden), draw.strided(rows, hidden)
        yield f"{rows} x {hidden}", x, residual, draw.normal(hidden), 1e-6
    yield "residual in fp32", draw.normal(5, 64), draw.normal(5, 64).float(), draw.normal(64), 1e-6
    yield NAN_ROW, draw.normal(3, 96), draw.normal(3, 96), torch.ones(96, dtype=draw.dtype), 1e-6


def _rotary_embedding(draw: Draw) -> Made:
    for tokens in draw.rows:
        for head_dim, rotary_dim in ((32, 32), (64, 64), (80, 80), (128, 128), (64, 32), (80, 20)):
            heads = draw.pick(2, 4, 32), draw.pick(1, 2, 8)
            rotated, _ = draw.heads(tokens, head_dim, sum(heads), heads[1])  # q and k; v stays
            angle = draw.uniform(0, 100, tokens, rotary_dim // 2)
            name = f"{tokens} tokens, {rotary_dim} of {head_dim} dimensions"
            yield name, rotated, angle.cos(), angle.sin()
    x, angle = draw.normal(3, 2, 32), draw.uniform(0, 9, 3, 16)
    yield NAN_ROW, x, angle.cos(), angle.sin()


def _silu_and_mul(draw: Draw) -> Made:
    for rows in draw.rows:
        for width in (64, draw.pick(72, 1000, 14336)):
            yield f"{rows} x {width}", draw.strided(rows, 2 * width).mul_(4)
    extreme = torch.tensor([[-200.0, -30.0, -0.0, 30.0], [1.0, 2.0, 3.0, 4.0]]).to(draw.dtype).repeat(1, 2)
    yield "gates where exp overflows", extreme
    yield NAN_ROW, draw.normal(3, 64)


# --- the paged cache -----------------------------------------------------------------------------------------


class Pages:
    """One layer of a cache of `layers`, and the scales of quantised values.

    kv [num_blocks, 2, kv_heads, block_size, head_dim] is `cache[:, 1]`, so its blocks lie apart. Block 0 is the
    null block. Slots that no test writes hold NaN.
    """

    def __init__(
        self, draw: Draw, num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        shape = (num_blocks, 2, 2, kv_heads, block_size, head_dim)
        self.block_size = block_size
        self.kv_scale: Tensor | None = None
        if dtype == torch.int8:
            self.kv = draw.integers(-127, 128, *shape, dtype=torch.int8)[:, 1]
            self.kv_scale = draw.uniform(0.001, 0.02, *shape[:-1])[:, 1]
        elif dtype == FP8:
            self.kv = draw.normal(*shape).float().clamp(-448, 448).to(FP8)[:, 1]
            self.kv_scale = draw.uniform(0.3, 1.0, 2)
        else:
            self.kv = draw.normal(*shape, dtype=dtype)[:, 1]

    def spoil(self, used: Tensor) -> None:
        """NaN in every slot that `used` [num_blocks, block_size] leaves out."""
        unused = ~used[:, None, None, :].expand(self.kv.shape[:-1])
        if self.kv.dtype == torch.int8 and self.kv_scale is not None:
            self.kv_scale[unused] = NAN
        elif self.kv.dtype == FP8:
            self.kv.view(torch.uint8)[unused] = 0x7F
        else:
            self.kv[unused] = NAN


def _reshape_and_cache(draw: Draw) -> Made:
    other = torch.float16 if draw.dtype == torch.float32 else torch.float32
    for cache_dtype in (draw.dtype, FP8, torch.int8, other):
        for tokens, kv_heads, block_size, head_dim in (
            (0, 2, 16, 32),
            (1, 1, 16, 64),
            (5, 2, 16, 80),
            (draw.pick(19, 70, 1000), draw.pick(1, 4, 8), 32, draw.pick(32, 64, 128)),
        ):
            pages = Pages(draw, 3 + tokens // block_size, kv_heads, block_size, head_dim, cache_dtype)
            query, key, value = draw.heads(tokens, head_dim, 2 * kv_heads, kv_heads, kv_heads)
            slots = _slots(draw, tokens, pages.kv.shape[0], block_size)
            name = (
                f"{tokens} tokens into {dtype_name(cache_dtype)} pages of {block_size}, head_dim {head_dim}"
            )
            yield name, key, value, pages.kv, slots, pages.kv_scale
    slots = torch.tensor([16, 17, 40])
    for name, dtype, factor in (
        ("int8, a key of zeros", torch.int8, 0),
        ("fp8, keys that saturate", FP8, 1000),
    ):
        pages = Pages(draw, 3, 2, 16, 32, dtype)
        key, value = draw.heads(3, 32, 2, 2)
        key[1] *= factor
        yield name, key, value, pages.kv, slots, pages.kv_scale
    pages = Pages(draw, 3, 2, 16, 32, torch.int8)
    key, value = draw.heads(3, 32, 2, 2)
    key[1, 0, 0] = NAN
    yield "int8, a NaN first in a head", key, value, pages.kv, slots, pages.kv_scale
    yield "padding only", key, value, Pages(draw, 3, 2, 16, 32, draw.dtype).kv, torch.tensor([-1, -1, -1])


def _slots(draw: Draw, tokens: int, num_blocks: int, block_size: int) -> Tensor:
    """Distinct slots from the last one of a page on, in any order, a third of them padding."""
    slots = block_size * 2 - 1 + draw.permutation((num_blocks - 2) * block_size + 1)[:tokens]
    slots[draw.permutation(tokens)[: tokens // 3]] = -1
    return slots


def _paged_attention(draw: Draw) -> Iterator[Case]:
    far = draw.pick(40, 300, 2000)
    decode = [(1, 1), (1, 15), (1, 16), (1, 17), (1, far)]
    prefill = [(1, 1), (16, 16), (draw.pick(9, 33, 300), draw.pick(17, 65, 700))]
    mixed = [(1, 33), (draw.pick(5, 16, 64), 20 + draw.pick(0, 16, 64)), (2, 2), (1, 32), (17, 17)]
    layouts = [  # kv_heads, query heads for each, head_dim, block_size
        (2, 1, 32, 16),
        (1, 8, 64, 16),
        (2, 2, 80, 16),
        (1, 4, 128, 32),
        (2, 4, 64, 32),
    ]
    if draw.size != "tiny":
        yield _attention(draw, "decode", [(1, 1 + 7 * row) for row in range(15)], 20, 1, 32, 16)
        layouts += [(4, 2, 32, 32), (2, 7, 64, 16), (1, 1, 128, 16), (8, 4, 128, 16), (2, 4, 128, 64)]
    for number, layout in enumerate(layouts):
        for kind, rows in (("decode", decode), ("mixed", mixed), ("prefill", prefill)):
            window = (None, 1, 16, 17, 6)[number % 5] if kind != "prefill" else (None, 5, None)[number % 3]
            told = (number + len(rows)) % 2 == 0  # half of them with max_query_len
            yield _attention(draw, kind, rows, *layout, window=window, told=told)
    for dtype in (FP8, torch.int8):
        yield _attention(draw, "decode", decode, 2, 2, 64, 16, cache_dtype=dtype, told=True)
        yield _attention(draw, "mixed", mixed, 1, 4, 32, 32, cache_dtype=dtype, window=20)
    yield _attention(draw, "decode", [], 2, 2, 32, 16)
    yield _attention(draw, "decode", [], 2, 2, 32, 16, padding=2)
    yield _attention(draw, "decode", [(1, 1)], 2, 2, 32, 16, told=True)
    yield _attention(draw, "decode", [(1, 20), (1, 33), (0, 0), (0, 0)], 2, 2, 32, 16, padding=2, told=True)
    yield _attention(draw, "mixed", [(3, 20), (1, 16), (0, 0)], 1, 2, 64, 16, padding=3)
    yield replace(_attention(draw, "mixed", [(1, 5), (2, 20), (1, 9)], 1, 2, 32, 16), name=NAN_ROW)
    for cache_dtype in (None, FP8):  # long enough for a queue of tiles in every warp
        yield _attention(
            draw, "decode", [(1, 150), (1, 133)], 1, 8, 64, 16, cache_dtype=cache_dtype, told=True
        )


def _attention(
    draw: Draw,
    kind: str,
    rows: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    *,
    window: int | None = None,
    cache_dtype: torch.dtype | None = None,
    padding: int = 0,
    told: bool = False,
) -> Case:
    """rows: (query_len, seq_len). Row 1 shares its first block with row 0, as a prefix cache makes it."""
    cache_dtype = cache_dtype or draw.dtype
    blocks = [math.ceil(seq_len / block_size) for _, seq_len in rows]
    pages = Pages(draw, 2 + sum(blocks), kv_heads, block_size, head_dim, cache_dtype)
    table = torch.tensor(STALE).repeat(len(rows), max(blocks, default=0) // 2 + 3).to(torch.int32)
    ids = 1 + draw.permutation(1 + sum(blocks))
    used = torch.zeros(pages.kv.shape[0], block_size, dtype=torch.bool)
    for row, (_, seq_len) in enumerate(rows):
        own = ids[sum(blocks[:row]) :][: blocks[row]]
        if row == 1 and min(rows[0][1], seq_len) >= block_size:
            own[0] = table[0, 0]
        table[row, : blocks[row]] = own.int()
        filled = torch.arange(blocks[row] * block_size).view(-1, block_size) < seq_len
        used[own] |= filled
    pages.spoil(used)
    query_lens = [query_len for query_len, _ in rows]
    query, *_ = draw.heads(sum(query_lens) + padding, head_dim, kv_heads * group, kv_heads, kv_heads)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    seq_lens = torch.tensor([seq_len for _, seq_len in rows], dtype=torch.int32)
    name = f"{kind} {len(rows)} rows, {kv_heads * group}/{kv_heads} heads of {head_dim}"
    name += f", {dtype_name(cache_dtype)} pages of {block_size}"
    name += f", window {window}" if window else ""
    name += f", {padding} padding tokens" if padding else ""
    options = {"scale": head_dim**-0.5, "sliding_window": window, "kv_scale": pages.kv_scale}
    most = max(query_lens, default=0) if told else None
    batch = AttentionBatch(starts, seq_lens, table[:, : max(blocks, default=0) + 1], most)
    return Case("paged_attention", name, (query, pages.kv, batch), options)


def _copy_blocks(draw: Draw) -> Made:
    for dtype in (draw.dtype, torch.int8, FP8):
        for pairs in (0, 1, 5):
            shape = (12, 2, 2, draw.pick(1, 2, 8), 16, draw.pick(8, 64, 128))
            one = draw.integers(-100, 100, *shape).to(dtype)
            two = draw.integers(-100, 100, *shape).to(dtype)
            order = draw.permutation(12)
            block_pairs = torch.stack((order[:pairs], order[6 : 6 + pairs]), dim=1)
            name = f"{pairs} blocks of {dtype_name(dtype)}"
            yield f"{name} within a cache", one, one, block_pairs
            yield f"{name} to another", one, two, block_pairs
    block_pairs = torch.tensor([[5, 0], [2, 3], [2, 1]])
    apart, fewer = draw.normal(6, 3, 40)[:, 1], draw.normal(4, 40)
    yield "blocks that lie apart, one of them twice", apart, fewer, block_pairs


def _across_devices(case: Case, device: str) -> Iterator[Case]:
    """Within the device, to it and from it. The pairs stay on the CPU."""
    pairs, (source, target, _) = case.args[2], copy_of(case, device).args
    yield Case(case.op, case.name, (source, target, pairs))
    if case.args[0] is not case.args[1]:
        yield Case(case.op, f"{case.name}, to the {device}", (case.args[0], target, pairs))
        yield Case(case.op, f"{case.name}, from the {device}", (source, case.args[1], pairs))


# --- quantised weights ---------------------------------------------------------------------------------------


def _int4_linear(draw: Draw) -> Made:
    def weight(width: int, out: int, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
        groups = width // group_size
        qweight = draw.integers(0, 256, out, width // 2, dtype=torch.uint8)
        scale = draw.uniform(0.01, 0.1, out, groups).to(draw.dtype)
        return qweight, scale, draw.integers(0, 16, out, groups, dtype=torch.uint8)

    large = (draw.pick(128, 512, 4096), draw.pick(64, 256, 1024), 128)
    for rows in (0, 1, 2, 8, 9, draw.pick(17, 33, 200)):
        for width, out, group_size in ((64, 40, 32), large, (96, 33, 96)):
            name = f"{rows} rows, {width} to {out}, groups of {group_size}"
            yield name, draw.strided(rows, width), *weight(width, out, group_size), group_size
    qweight, scale, zero = weight(64, 40, 32)
    for dtype in (torch.float16, torch.float32):
        yield f"scales in {dtype_name(dtype)}", draw.normal(3, 64), qweight, scale.to(dtype), zero, 32
    yield "fp32 results", draw.normal(3, 64), qweight, scale, zero, 32, torch.float32
    yield NAN_ROW, draw.normal(3, 64), qweight, scale.float(), zero, 32


def _quantised_shapes(draw: Draw) -> Iterator[tuple[str, Tensor, int, int]]:
    """name, x, K, N"""
    for rows in (0, 1, 3, 8, 9, draw.pick(17, 33, 200)):
        for width, out in ((64, 40), (draw.pick(96, 512, 4096), draw.pick(33, 257, 1000))):
            yield f"{rows} rows, {width} to {out}", draw.strided(rows, width), width, out


def _special_rows(draw: Draw, qweight: Tensor, scale: Tensor) -> Made:
    x, qweight = draw.normal(3, 64), qweight[:, :64].contiguous()
    x[1] = 0
    yield "a row of zeros", x, qweight, scale
    yield NAN_ROW, draw.normal(3, 64), qweight, scale


def _int8_linear(draw: Draw) -> Made:
    for name, x, width, out in _quantised_shapes(draw):
        qweight = draw.integers(-127, 128, out, width, dtype=torch.int8)
        scale = draw.uniform(0.001, 0.01, out)
        yield name, x, qweight, scale
    yield "fp32 results", draw.normal(3, qweight.shape[1]), qweight, scale, torch.float32
    yield from _special_rows(draw, qweight, scale)


def _fp8_linear(draw: Draw) -> Made:
    for name, x, width, out in _quantised_shapes(draw):
        qweight = (draw.normal(out, width).float() * 50).clamp(-448, 448).to(FP8)
        scale = draw.uniform(0.001, 0.01, out)
        yield f"{name}, dynamic", x, qweight, scale
        static = torch.tensor(0.005)  # the largest of normal numbers saturate
        yield f"{name}, static", x, qweight, scale, static
    yield from _special_rows(draw, qweight, scale)


def _grouped_linear(draw: Draw) -> Made:
    for sizes in ([0, 0, 0], [1, 0, 0], [0, 3, 1], [draw.pick(17, 40, 300), 0, 2, 5]):
        width, out = draw.pick(64, 128, 1024), draw.pick(40, 100, 700)
        weight, ends = draw.normal(len(sizes), out, width), torch.tensor(sizes).cumsum(0).int()
        yield f"groups of {sizes}", draw.strided(sum(sizes), width), weight, ends
    yield NAN_ROW, draw.normal(4, 64), weight[:2, :, :64].contiguous(), torch.tensor([2, 4]).int()


# --- LoRA ----------------------------------------------------------------------------------------------------


def _token_adapters(draw: Draw, tokens: int, adapters: int) -> Tensor:
    """Adapters in any order, about a quarter of the tokens without one."""
    ids = draw.integers(0, adapters, tokens, dtype=torch.int32)
    ids[draw.uniform(0, 1, tokens) < 0.25] = -1
    return ids


def _lora_shapes(draw: Draw) -> Iterator[tuple[int, int, int, int]]:
    """tokens, slices, adapters, rank"""
    yield 0, 1, 2, 8
    yield 1, 1, 1, 16
    yield 6, 3, 3, 8
    yield 7, 2, 1, 20
    yield draw.pick(19, 70, 300), draw.pick(2, 4, 8), 4, draw.pick(16, 40, 64)


def _as_slots(matrices: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Plain, and as the manager keeps them on a CPU: neighbours in memory are neighbouring results."""
    yield "", matrices
    slots = matrices.transpose(-2, -1).contiguous().transpose(-2, -1)
    yield ", columns first", slots
    yield ", columns first, bf16", slots.to(torch.bfloat16)


def _lora_shrink(draw: Draw) -> Made:
    for number, (tokens, slices, adapters, rank) in enumerate(_lora_shapes(draw)):
        width = draw.pick(80, 320, 4096) + number % 4  # sums are often cut in four
        lora_a = draw.normal(slices, adapters, rank, width)
        x, ids = draw.strided(tokens, width), _token_adapters(draw, tokens, adapters)
        for name, matrices in _as_slots(lora_a):
            yield f"{tokens} tokens, {slices} slices, rank {rank}{name}", x, matrices, ids
    yield "no row has an adapter", draw.normal(4, width), lora_a, torch.full((4,), -1, dtype=torch.int32)
    yield NAN_ROW, draw.normal(3, width), lora_a, torch.tensor([0, 1, -1], dtype=torch.int32)


def _lora_expand(draw: Draw) -> Made:
    widths = [draw.pick(64, 256, 4096), *[draw.pick(40, 100, 1024)] * 7]
    for tokens, slices, adapters, rank in _lora_shapes(draw):
        lora_b = [draw.normal(adapters, width, rank) for width in widths[:slices]]
        shrunk = draw.normal(slices, tokens, rank, dtype=torch.float32)
        y, scaling = draw.strided(tokens, sum(widths[:slices])), draw.uniform(0.5, 2, adapters)
        ids = _token_adapters(draw, tokens, adapters)
        for parts in zip(*map(_as_slots, lora_b), strict=True):
            name, matrices = parts[0][0], [part for _, part in parts]
            yield f"{tokens} tokens, {slices} slices, rank {rank}{name}", shrunk, matrices, ids, y, scaling
    shrunk, y = draw.normal(slices, 4, rank, dtype=torch.float32), draw.strided(4, sum(widths[:slices]))
    none = torch.full((4,), -1, dtype=torch.int32)
    yield "no row has an adapter", shrunk, lora_b, none, y, scaling


# --- choosing tokens -----------------------------------------------------------------------------------------


def _vocabularies(draw: Draw) -> tuple[int, ...]:
    return (32, draw.pick(77, 1000, 32000), draw.pick(300, 4099, 128256))


def _logits(draw: Draw, rows: int, vocabulary: int) -> Tensor:
    return draw.normal(rows, vocabulary, dtype=torch.float32) * 3


def _sample(draw: Draw) -> Made:
    for vocabulary in _vocabularies(draw):
        for rows in (0, 1, draw.pick(5, 16, 64)):
            temperature = draw.uniform(0.3, 1.5, rows)
            temperature[draw.uniform(0, 1, rows) < 0.2] = 0
            logits = _logits(draw, rows, vocabulary)
            yield _sampled(draw, f"{rows} rows, temperature", logits, temperature=temperature)
        rows = draw.pick(4, 16, 64)
        filters = {
            "top_k": draw.integers(1, min(50, vocabulary), rows, dtype=torch.int32),
            "top_p": draw.uniform(0.05, 0.99, rows),
            "min_p": draw.uniform(0.01, 0.3, rows),
        }
        for name, value in filters.items():
            logits = _logits(draw, rows, vocabulary)
            yield _sampled(draw, f"{rows} rows, {name.replace('_', '-')}", logits, **{name: value})
        yield _sampled(draw, f"{rows} rows, all three", _logits(draw, rows, vocabulary), **filters)
    # Nearly equal logits and few survivors: one token too many is drawn often enough to be seen.
    flat, few = _logits(draw, 16, 32) / 30, torch.tensor([1, 2, 3, 4] * 4).int()
    yield _sampled(draw, "nearly equal, few stay by top-k", flat, top_k=few)
    yield _sampled(draw, "nearly equal, few stay by top-p", flat, top_p=(few - 0.5) / 32)
    equal = torch.full((4, 64), 1.5)
    yield _sampled(draw, "equal logits", equal, top_k=torch.tensor([1, 2, 64, 5]).int())
    yield _sampled(draw, "equal logits, greedy", equal, temperature=torch.zeros(4))
    masked = _logits(draw, 4, 64)
    masked[:, 5:] = float("-inf")
    masked[0, :4] = float("-inf")
    yield _sampled(draw, "most tokens forbidden", masked, top_p=torch.full((4,), 0.9))
    flat, top_k = draw.integers(-1, 2, 4, 64).float(), torch.tensor([1, 5, 20, 63]).int()
    yield _sampled(draw, "many ties", flat, top_k=top_k, top_p=torch.tensor([1, 0.5, 0.2, 0.9]))
    yield _sampled(draw, NAN_ROW, _logits(draw, 3, 64))


def _sampled(draw: Draw, name: str, logits: Tensor, **given: Tensor) -> tuple[Any, ...]:
    """A call of `sample` with everything off that is not given."""
    rows, vocabulary = logits.shape
    off = {
        "temperature": torch.ones(rows),
        "top_k": torch.full((rows,), vocabulary, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
    }
    keys = draw.integers(-(2**31), 2**31, rows, 2, dtype=torch.int32)
    return f"{name}, vocabulary {vocabulary}", logits, *(off | given).values(), keys


def _on_logits(draw: Draw) -> Iterator[tuple[str, Tensor]]:
    """Yield name and logits."""
    for vocabulary, rows in product(_vocabularies(draw), (0, 1, draw.pick(3, 16, 64))):
        yield f"{rows} x {vocabulary}", _logits(draw, rows, vocabulary)


def _apply_penalties(draw: Draw) -> Made:
    for name, logits in _on_logits(draw):
        counts = (draw.integers(-6, 4, *logits.shape)).clamp_min(0).int()
        in_prompt = draw.uniform(0, 1, *logits.shape) < 0.2
        penalties = [draw.uniform(low, high, len(logits)) for low, high in ((0.5, 2), (-1, 1), (-1, 1))]
        yield name, logits, in_prompt, counts, *penalties
    yield NAN_ROW, logits, in_prompt, counts, *penalties


def _gather_logprobs(draw: Draw) -> Made:
    for name, logits in _on_logits(draw):
        ids = draw.integers(0, logits.shape[1], len(logits))
        yield name, logits, ids
    yield NAN_ROW, logits, ids
    yield "many ties", draw.integers(-1, 2, 4, 50).float(), draw.integers(0, 50, 4)
    masked = _logits(draw, 2, 50)
    masked[:, 10:] = float("-inf")
    yield "most tokens forbidden", masked, torch.tensor([3, 40])


def _apply_token_bitmask(draw: Draw) -> Made:
    for name, logits in _on_logits(draw):
        num_words = math.ceil(logits.shape[1] / 32)
        yield name, logits, draw.integers(-(2**31), 2**31, len(logits), num_words, dtype=torch.int32)
    yield "all and nothing", _logits(draw, 2, 70), torch.tensor([[-1] * 3, [0] * 3]).int()


GENERATORS: dict[str, Callable[[Draw], Iterator[Any]]] = {
    "linear": _linear,
    "gated_linear": _gated_linear,
    "norm_linear": _norm_linear,
    "embedding": _embedding,
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "rotary_embedding": _rotary_embedding,
    "silu_and_mul": _silu_and_mul,
    "reshape_and_cache": _reshape_and_cache,
    "paged_attention": _paged_attention,
    "copy_blocks": _copy_blocks,
    "int4_linear": _int4_linear,
    "int8_linear": _int8_linear,
    "fp8_linear": _fp8_linear,
    "grouped_linear": _grouped_linear,
    "lora_shrink": _lora_shrink,
    "lora_expand": _lora_expand,
    "sample": _sample,
    "apply_penalties": _apply_penalties,
    "gather_logprobs": _gather_logprobs,
    "apply_token_bitmask": _apply_token_bitmask,
}
"""Generators by operation, in the order of `ops.py`."""
