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
from typing import Literal

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.check.case import Case, copy_of, dtype_name

Size = Literal["tiny", "small", "large"]
FP8 = torch.float8_e4m3fn
NAN = float("nan")
STALE = (-7, 1_000_003)
"""Block ids in columns behind the end of a row: reading through them must not happen."""


def cases(
    op: str, *, seed: int, size: Size = "tiny", dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Iterator[Case]:
    """All cases of an operation. Made on the CPU and then moved, so that a seed means the same everywhere."""
    draw = Draw(zlib.crc32(f"{op} {seed} {size}".encode()), dtype, size)
    for case in GENERATORS[op](draw):
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


def _row_counts(draw: Draw) -> tuple[int, ...]:
    return (0, 1, 3, draw.pick(5, 33, 257))


def _linear(draw: Draw) -> Iterator[Case]:
    for rows in (*_row_counts(draw), 17):
        width, out = draw.pick(64, 320, 1024), draw.pick(48, 200, 1000)
        weight, bias = draw.normal(out, width), draw.normal(out)
        yield Case("linear", f"{rows} rows", (draw.normal(rows, width), weight, bias))
        yield Case("linear", f"{rows} strided rows, no bias", (draw.strided(rows, width), weight))
        rounded = weight.bfloat16().to(draw.dtype)
        yield Case(
            "linear", f"{rows} rows, weights of a bf16 checkpoint", (draw.normal(rows, width), rounded, bias)
        )
    yield _with_nan_row(Case("linear", "a row of NaN", (draw.normal(3, 64), draw.normal(40, 64))), 1)


def _embedding(draw: Draw) -> Iterator[Case]:
    for rows in _row_counts(draw):
        for size in (64, draw.pick(72, 896, 4096)):
            table = draw.strided(97, size)
            yield Case("embedding", f"{rows} of 97 x {size}", (table, draw.integers(0, 97, rows)))
    table = draw.normal(5, 64)
    table[2] = NAN
    yield Case("embedding", "a row of NaN", (table, torch.tensor([4, 2, 0, 0])))


def _rms_norm(draw: Draw) -> Iterator[Case]:
    for rows in _row_counts(draw):
        for hidden in (64, draw.pick(80, 896, 4096), draw.pick(100, 1000, 5120)):
            x = draw.strided(rows, hidden)
            yield Case("rms_norm", f"{rows} x {hidden}", (x, draw.normal(hidden), 1e-6))
    for head_dim in (32, 80, 128):
        q, k = draw.heads(3, head_dim, 4, 2)
        yield Case("rms_norm", f"heads of {head_dim} in a fused qkv tensor", (q, draw.normal(head_dim), 1e-5))
    yield Case(
        "rms_norm", "fp32 rows, the weight's dtype", (draw.normal(3, 64).float(), draw.normal(64), 1e-6)
    )
    yield Case("rms_norm", "zeros", (torch.zeros(2, 64, dtype=draw.dtype), draw.normal(64), 1e-6))
    yield _with_nan_row(Case("rms_norm", "a row of NaN", (draw.normal(3, 96), draw.normal(96), 1e-6)), 1)


def _fused_add_rms_norm(draw: Draw) -> Iterator[Case]:
    op = "fused_add_rms_norm"
    for rows in _row_counts(draw):
        for hidden in (64, draw.pick(80, 896, 4096), draw.pick(100, 1000, 5120)):
            x, residual = draw.strided(rows, hidden), draw.strided(rows, hidden)
            yield Case(op, f"{rows} x {hidden}", (x, residual, draw.normal(hidden), 1e-6))
    x, residual, weight = draw.normal(5, 64), draw.normal(5, 64).float(), draw.normal(64)
    yield Case(op, "residual in fp32", (x, residual, weight, 1e-6))
    yield _with_nan_row(
        Case(op, "a row of NaN", (draw.normal(3, 96), draw.normal(3, 96), weight.new_ones(96), 1e-6)), 1
    )


def _rotary_embedding(draw: Draw) -> Iterator[Case]:
    for tokens in _row_counts(draw):
        for head_dim, rotary_dim in ((32, 32), (64, 64), (80, 80), (128, 128), (64, 32), (80, 20)):
            heads = draw.pick(2, 4, 32), draw.pick(1, 2, 8)
            rotated, _ = draw.heads(tokens, head_dim, sum(heads), heads[1])  # q and k; v stays
            angle = draw.uniform(0, 100, tokens, rotary_dim // 2)
            name = f"{tokens} tokens, {rotary_dim} of {head_dim} dimensions"
            yield Case("rotary_embedding", name, (rotated, angle.cos(), angle.sin()))
    x, angle = draw.normal(3, 2, 32), draw.uniform(0, 9, 3, 16)
    yield _with_nan_row(Case("rotary_embedding", "a row of NaN", (x, angle.cos(), angle.sin())), 1)


def _silu_and_mul(draw: Draw) -> Iterator[Case]:
    for rows in _row_counts(draw):
        for width in (64, draw.pick(72, 1000, 14336)):
            yield Case("silu_and_mul", f"{rows} x {width}", (draw.strided(rows, 2 * width).mul_(4),))
    extreme = torch.tensor([[-200.0, -30.0, -0.0, 30.0], [1.0, 2.0, 3.0, 4.0]]).to(draw.dtype).repeat(1, 2)
    yield Case("silu_and_mul", "gates where exp overflows", (extreme,))
    yield _with_nan_row(Case("silu_and_mul", "a row of NaN", (draw.normal(3, 64),)), 1)


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


def _reshape_and_cache(draw: Draw) -> Iterator[Case]:
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
            yield Case("reshape_and_cache", name, (key, value, pages.kv, slots, pages.kv_scale))
    pages = Pages(draw, 3, 2, 16, 32, torch.int8)
    key, value = draw.heads(3, 32, 2, 2)
    key[1] = 0
    slots = torch.tensor([16, 17, 40])
    yield Case("reshape_and_cache", "int8, a key of zeros", (key, value, pages.kv, slots, pages.kv_scale))
    pages = Pages(draw, 3, 2, 16, 32, FP8)
    key, value = draw.heads(3, 32, 2, 2)
    key[1] *= 1000
    yield Case("reshape_and_cache", "fp8, keys that saturate", (key, value, pages.kv, slots, pages.kv_scale))
    padding = torch.tensor([-1, -1, -1])
    yield Case(
        "reshape_and_cache", "padding only", (key, value, Pages(draw, 3, 2, 16, 32, draw.dtype).kv, padding)
    )


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
        layouts += [(4, 2, 32, 32), (2, 7, 64, 16), (1, 1, 128, 16), (8, 4, 128, 16)]
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
    case = _attention(draw, "mixed", [(1, 5), (2, 20), (1, 9)], 1, 2, 32, 16)
    yield _with_nan_row(Case(case.op, "a row of NaN", case.args, case.kwargs), 1)


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


def _copy_blocks(draw: Draw) -> Iterator[Case]:
    for dtype in (draw.dtype, torch.int8, FP8):
        for pairs in (0, 1, 5):
            shape = (12, 2, 2, draw.pick(1, 2, 8), 16, draw.pick(8, 64, 128))
            one = draw.integers(-100, 100, *shape).to(dtype)
            two = draw.integers(-100, 100, *shape).to(dtype)
            order = draw.permutation(12)
            block_pairs = torch.stack((order[:pairs], order[6 : 6 + pairs]), dim=1)
            name = f"{pairs} blocks of {dtype_name(dtype)}"
            yield Case("copy_blocks", f"{name} within a cache", (one, one, block_pairs))
            yield Case("copy_blocks", f"{name} to another", (one, two, block_pairs))
    apart = draw.normal(6, 3, 40)[:, 1]
    fewer = draw.normal(4, 40)
    block_pairs = torch.tensor([[5, 0], [2, 3], [2, 1]])
    yield Case("copy_blocks", "blocks that lie apart, one of them twice", (apart, fewer, block_pairs))


def _across_devices(case: Case, device: str) -> Iterator[Case]:
    """Within the device, to it and from it. The pairs stay on the CPU."""
    pairs, (source, target, _) = case.args[2], copy_of(case, device).args
    yield Case(case.op, case.name, (source, target, pairs))
    if case.args[0] is not case.args[1]:
        yield Case(case.op, f"{case.name}, to the {device}", (case.args[0], target, pairs))
        yield Case(case.op, f"{case.name}, from the {device}", (source, case.args[1], pairs))


# --- quantised weights ---------------------------------------------------------------------------------------


def _int4_linear(draw: Draw) -> Iterator[Case]:
    for rows in (0, 1, 2, 8, 9, draw.pick(17, 33, 200)):
        for width, out, group_size in (
            (64, 40, 32),
            (draw.pick(128, 512, 4096), draw.pick(64, 256, 1024), 128),
            (96, 33, 96),
        ):
            groups = width // group_size
            qweight = draw.integers(0, 256, out, width // 2, dtype=torch.uint8)
            scale = draw.uniform(0.01, 0.1, out, groups).to(draw.dtype)
            zero = draw.integers(0, 16, out, groups, dtype=torch.uint8)
            name = f"{rows} rows, {width} to {out}, groups of {group_size}"
            yield Case("int4_linear", name, (draw.strided(rows, width), qweight, scale, zero, group_size))
    qweight, scale, zero = (
        draw.integers(0, 256, 40, 32, dtype=torch.uint8),
        draw.uniform(0.01, 0.1, 40, 2),
        draw.integers(0, 16, 40, 2, dtype=torch.uint8),
    )
    for dtype in (torch.float16, torch.float32):
        name = f"scales in {dtype_name(dtype)}"
        yield Case("int4_linear", name, (draw.normal(3, 64), qweight, scale.to(dtype), zero, 32))
    yield _with_nan_row(
        Case("int4_linear", "a row of NaN", (draw.normal(3, 64), qweight, scale, zero, 32)), 1
    )


def _quantised_shapes(draw: Draw) -> Iterator[tuple[int, int, int]]:
    for rows in (0, 1, 3, 8, 9, draw.pick(17, 33, 200)):
        yield rows, 64, 40
        yield rows, draw.pick(96, 512, 4096), draw.pick(33, 257, 1000)


def _int8_linear(draw: Draw) -> Iterator[Case]:
    for rows, width, out in _quantised_shapes(draw):
        qweight = draw.integers(-127, 128, out, width, dtype=torch.int8)
        scale = draw.uniform(0.001, 0.01, out)
        yield Case(
            "int8_linear", f"{rows} rows, {width} to {out}", (draw.strided(rows, width), qweight, scale)
        )
    x = draw.normal(3, 64)
    x[1] = 0
    yield Case("int8_linear", "a row of zeros", (x, qweight[:, :64].contiguous(), scale))
    yield _with_nan_row(
        Case("int8_linear", "a row of NaN", (draw.normal(3, 64), qweight[:, :64].contiguous(), scale)),
        1,
        free=True,
    )


def _fp8_linear(draw: Draw) -> Iterator[Case]:
    for rows, width, out in _quantised_shapes(draw):
        qweight = (draw.normal(out, width).float() * 50).clamp(-448, 448).to(FP8)
        scale = draw.uniform(0.001, 0.01, out)
        x = draw.strided(rows, width)
        yield Case("fp8_linear", f"{rows} rows, {width} to {out}, dynamic", (x, qweight, scale))
        static = torch.tensor(0.005)  # the largest of normal numbers saturate
        yield Case("fp8_linear", f"{rows} rows, {width} to {out}, static", (x, qweight, scale, static))
    x = draw.normal(3, 64)
    x[1] = 0
    yield Case("fp8_linear", "a row of zeros", (x, qweight[:, :64].contiguous(), scale))
    yield _with_nan_row(
        Case("fp8_linear", "a row of NaN", (draw.normal(3, 64), qweight[:, :64].contiguous(), scale)),
        1,
        free=True,
    )


def _grouped_linear(draw: Draw) -> Iterator[Case]:
    for sizes in ([0, 0, 0], [1, 0, 0], [0, 3, 1], [draw.pick(17, 40, 300), 0, 2, 5]):
        width, out = draw.pick(64, 128, 1024), draw.pick(40, 100, 700)
        weight = draw.normal(len(sizes), out, width)
        ends = torch.tensor(sizes).cumsum(0).int()
        yield Case("grouped_linear", f"groups of {sizes}", (draw.strided(sum(sizes), width), weight, ends))
    case = Case(
        "grouped_linear",
        "a row of NaN",
        (draw.normal(4, 64), weight[:2, :, :64].contiguous(), torch.tensor([2, 4]).int()),
    )
    yield _with_nan_row(case, 1)


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
    yield draw.pick(19, 40, 300), 2, 4, draw.pick(16, 32, 64)


def _as_slots(matrices: Tensor) -> Iterator[tuple[str, Tensor]]:
    """As the manager keeps them on a CPU: neighbours in memory are neighbouring results."""
    slots = matrices.transpose(-2, -1).contiguous().transpose(-2, -1)
    yield "columns first", slots
    yield "columns first, bf16", slots.to(torch.bfloat16)


def _lora_shrink(draw: Draw) -> Iterator[Case]:
    width = draw.pick(80, 320, 4096)
    for tokens, slices, adapters, rank in _lora_shapes(draw):
        lora_a = draw.normal(slices, adapters, rank, width)
        args = (draw.strided(tokens, width), lora_a, _token_adapters(draw, tokens, adapters))
        yield Case("lora_shrink", f"{tokens} tokens, {slices} slices, rank {rank}", args)
        for name, other in _as_slots(lora_a):
            args = (args[0], other, args[2])
            yield Case("lora_shrink", f"{tokens} tokens, {slices} slices, rank {rank}, {name}", args)
    none = torch.full((4,), -1, dtype=torch.int32)
    yield Case("lora_shrink", "no row has an adapter", (draw.normal(4, width), lora_a, none))
    ids = torch.tensor([0, 1, -1], dtype=torch.int32)
    yield _with_nan_row(Case("lora_shrink", "a row of NaN", (draw.normal(3, width), lora_a, ids)), 1)


def _lora_expand(draw: Draw) -> Iterator[Case]:
    widths = [draw.pick(64, 256, 4096), draw.pick(40, 100, 1024), draw.pick(40, 100, 1024)]
    for tokens, slices, adapters, rank in _lora_shapes(draw):
        lora_b = [draw.normal(adapters, width, rank) for width in widths[:slices]]
        shrunk = draw.normal(slices, tokens, rank, dtype=torch.float32)
        y, scaling = draw.strided(tokens, sum(widths[:slices])), draw.uniform(0.5, 2, adapters)
        args = (shrunk, lora_b, _token_adapters(draw, tokens, adapters), y, scaling)
        yield Case("lora_expand", f"{tokens} tokens, {slices} slices, rank {rank}", args)
        for others in zip(*map(_as_slots, lora_b), strict=True):
            args = (shrunk, [other for _, other in others], args[2], y.clone(), scaling)
            yield Case("lora_expand", f"{tokens} tokens, {slices} slices, rank {rank}, {others[0][0]}", args)
    shrunk, y = draw.normal(slices, 4, rank, dtype=torch.float32), draw.strided(4, sum(widths[:slices]))
    none = torch.full((4,), -1, dtype=torch.int32)
    yield Case("lora_expand", "no row has an adapter", (shrunk, lora_b, none, y, scaling))


# --- choosing tokens -----------------------------------------------------------------------------------------


def _vocabulary(draw: Draw) -> tuple[int, ...]:
    return (32, draw.pick(77, 1000, 32000), draw.pick(300, 4099, 128256))


def _logits(draw: Draw, rows: int, vocabulary: int) -> Tensor:
    return draw.normal(rows, vocabulary, dtype=torch.float32) * 3


def _sample(draw: Draw) -> Iterator[Case]:
    for vocabulary in _vocabulary(draw):
        for rows in (0, 1, draw.pick(5, 16, 64)):
            temperature = draw.uniform(0.3, 1.5, rows)
            temperature[draw.uniform(0, 1, rows) < 0.2] = 0
            yield _sampled(draw, f"{rows} rows, temperature", vocabulary, rows, temperature=temperature)
        rows = draw.pick(4, 16, 64)
        top_k = draw.integers(1, min(50, vocabulary), rows, dtype=torch.int32)
        top_p, min_p = draw.uniform(0.05, 0.99, rows), draw.uniform(0.01, 0.3, rows)
        yield _sampled(draw, f"{rows} rows, top-k", vocabulary, rows, top_k=top_k)
        yield _sampled(draw, f"{rows} rows, top-p", vocabulary, rows, top_p=top_p)
        yield _sampled(draw, f"{rows} rows, min-p", vocabulary, rows, min_p=min_p)
        yield _sampled(
            draw, f"{rows} rows, all three", vocabulary, rows, top_k=top_k, top_p=top_p, min_p=min_p
        )
    # Nearly equal logits and few survivors: one token too many is drawn often enough to be seen.
    flat, few = _logits(draw, 16, 32) / 30, torch.tensor([1, 2, 3, 4] * 4).int()
    yield _sampled(draw, "nearly equal, few stay by top-k", 32, 16, logits=flat, top_k=few)
    yield _sampled(draw, "nearly equal, few stay by top-p", 32, 16, logits=flat, top_p=(few - 0.5) / 32)
    rows = 4
    equal = torch.full((rows, 64), 1.5)
    yield _sampled(draw, "equal logits", 64, rows, logits=equal, top_k=torch.tensor([1, 2, 64, 5]).int())
    yield _sampled(draw, "equal logits, greedy", 64, rows, logits=equal, temperature=torch.zeros(rows))
    masked = _logits(draw, rows, 64)
    masked[:, 5:] = float("-inf")
    masked[0, :4] = float("-inf")
    yield _sampled(draw, "most tokens forbidden", 64, rows, logits=masked, top_p=torch.full((rows,), 0.9))
    flat = draw.integers(-1, 2, rows, 64).float()
    yield _sampled(
        draw,
        "many ties",
        64,
        rows,
        logits=flat,
        top_k=torch.tensor([1, 5, 20, 63]).int(),
        top_p=torch.tensor([1, 0.5, 0.2, 0.9]),
    )
    case = _sampled(draw, "a row of NaN", 64, 3)
    yield _with_nan_row(case, 1, free=True)


def _sampled(
    draw: Draw,
    name: str,
    vocabulary: int,
    rows: int,
    *,
    logits: Tensor | None = None,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Case:
    """A call of `sample` with everything off that is not given."""
    args = (
        _logits(draw, rows, vocabulary) if logits is None else logits,
        torch.ones(rows) if temperature is None else temperature,
        torch.full((rows,), vocabulary, dtype=torch.int32) if top_k is None else top_k,
        torch.ones(rows) if top_p is None else top_p,
        torch.zeros(rows) if min_p is None else min_p,
        draw.integers(-(2**31), 2**31, rows, 2, dtype=torch.int32),
    )
    return Case("sample", f"{name}, vocabulary {vocabulary}", args)


def _apply_penalties(draw: Draw) -> Iterator[Case]:
    for vocabulary in _vocabulary(draw):
        for rows in (0, 1, draw.pick(3, 16, 64)):
            counts = (draw.integers(-6, 4, rows, vocabulary)).clamp_min(0).int()
            in_prompt = draw.uniform(0, 1, rows, vocabulary) < 0.2
            penalties = (draw.uniform(0.5, 2, rows), draw.uniform(-1, 1, rows), draw.uniform(-1, 1, rows))
            args = (_logits(draw, rows, vocabulary), in_prompt, counts, *penalties)
            yield Case("apply_penalties", f"{rows} x {vocabulary}", args)
    yield _with_nan_row(Case("apply_penalties", "a row of NaN", args), 1)


def _gather_logprobs(draw: Draw) -> Iterator[Case]:
    for vocabulary in _vocabulary(draw):
        for rows in (0, 1, draw.pick(3, 16, 64)):
            args = (_logits(draw, rows, vocabulary), draw.integers(0, vocabulary, rows))
            yield Case("gather_logprobs", f"{rows} x {vocabulary}", args)
    flat = draw.integers(-1, 2, 4, 50).float()
    yield Case("gather_logprobs", "many ties", (flat, draw.integers(0, 50, 4)))
    masked = _logits(draw, 2, 50)
    masked[:, 10:] = float("-inf")
    yield Case("gather_logprobs", "most tokens forbidden", (masked, torch.tensor([3, 40])))
    yield _with_nan_row(Case("gather_logprobs", "a row of NaN", args), 1, free=True)


def _apply_token_bitmask(draw: Draw) -> Iterator[Case]:
    for vocabulary in _vocabulary(draw):
        for rows in (0, 1, draw.pick(3, 16, 64)):
            words = draw.integers(-(2**31), 2**31, rows, math.ceil(vocabulary / 32), dtype=torch.int32)
            yield Case(
                "apply_token_bitmask", f"{rows} x {vocabulary}", (_logits(draw, rows, vocabulary), words)
            )
    yield Case(
        "apply_token_bitmask",
        "all and nothing",
        (_logits(draw, 2, 70), torch.tensor([[-1] * 3, [0] * 3]).int()),
    )


# --- helpers -------------------------------------------------------------------------------------------------


def _with_nan_row(case: Case, row: int, *, free: bool = False) -> Case:
    """The case with NaN in one row of its first tensor; `free` if the contract does not say what becomes of it."""
    first = case.args[0].clone()
    first[row] = NAN
    return Case(case.op, case.name, (first, *case.args[1:]), case.kwargs, frozenset([row] if free else []))


GENERATORS: dict[str, Callable[[Draw], Iterator[Case]]] = {
    "linear": _linear,
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
