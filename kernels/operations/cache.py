"""The paged KV cache: write, attend, copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.bench.workloads import Maker, Model, Workload, of_recipes
from kernels.check.case import Case, dtype_name
from kernels.check.draw import NAN_ROW, Draw, Made
from kernels.check.invariance import Rows
from kernels.operation import Operation, Work, rate_name

FP8 = torch.float8_e4m3fn
NAN = float("nan")
STALE = (-7, 1_000_003)
"""Block ids in columns behind the end of a row: reading through them must not happen."""


class _Requests(Rows):
    """The rows are requests, each with its queries."""

    def count(self, case: Case) -> int:
        return case.args[2].seq_lens.shape[0]

    def alone(self, case: Case, row: int) -> Case:
        """Cut one request out. Alone it may be a decode batch: the other rows must not choose its kernel."""
        query, kv, batch = case.args
        starts, rows = batch.query_start_loc[row : row + 2], slice(row, row + 1)
        start, end = starts.tolist()
        most = None if batch.max_query_len is None else end - start
        own = AttentionBatch(starts - start, batch.seq_lens[rows], batch.block_table[rows], most)
        return Case(case.op, f"{case.name}: row {row} alone", (query[start:end], kv, own), case.kwargs)

    def of(self, case: Case, row: int, result: Any) -> tuple[Tensor, ...]:
        start, end = case.args[2].query_start_loc[row : row + 2].tolist()
        return (result[start:end],)


def _attention_terms(query: Tensor, kv: Tensor, batch: AttentionBatch, **options: Any) -> int:
    return query.shape[-1] + max(batch.seq_lens.tolist(), default=0)


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


def _slots(draw: Draw, tokens: int, num_blocks: int, block_size: int) -> Tensor:
    """Distinct slots from the last one of a page on, in any order, a third of them padding."""
    slots = block_size * 2 - 1 + draw.permutation((num_blocks - 2) * block_size + 1)[:tokens]
    slots[draw.permutation(tokens)[: tokens // 3]] = -1
    return slots


def _reshape_and_cache_cases(draw: Draw) -> Made:
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


def _reshape_and_cache_work(
    key: Tensor, value: Tensor, kv: Tensor, slot_mapping: Tensor, kv_scale: Tensor | None = None
) -> Work:
    tokens = int((slot_mapping >= 0).sum())
    per_token = 2 * key.shape[1] * key.shape[2]
    scales = 8 * tokens * key.shape[1] if kv.dtype == torch.int8 else 0
    return Work(tokens * per_token * key.element_size(), tokens * per_token * kv.element_size() + scales)


def _reshape_and_cache_workloads(maker: Maker) -> Iterator[Workload]:
    for model in maker.models:
        for dtype in (maker.dtype, FP8 if maker.gpu else torch.int8):
            yield _kv_write(maker, model, maker.many, dtype)
    yield _kv_write(maker, maker.largest, 32, maker.dtype)


def _kv_write(maker: Maker, model: Model, rows: int, cache_dtype: torch.dtype) -> Workload:
    name = f"{model.name}, {rows} tokens to {dtype_name(cache_dtype)}"
    heads, group = model.kv_heads, model.heads // model.kv_heads

    def copies(number: int) -> list[Case]:
        num_blocks = 1 + math.ceil(rows / model.block_size)
        shape = (num_blocks, number, 2, heads, model.block_size, model.head_dim)
        cache = torch.zeros(shape, dtype=cache_dtype, device=maker.device)
        slots = torch.arange(model.block_size, model.block_size + rows, device=maker.device)
        cases = []
        for layer in range(number):
            key, value = maker.normal(rows, (group + 2) * heads, model.head_dim)().split(heads, 1)[-2:]
            scale = _scales(maker, cache_dtype, shape, 1.0)
            cases.append(Case("reshape_and_cache", name, (key, value, cache[:, layer], slots, scale)))
        return cases

    return Workload("reshape_and_cache", name, copies)


RESHAPE_AND_CACHE = Operation(
    "reshape_and_cache",
    forms={
        "reference": "kv_write.py",
        "cpu": "kv_write.cpp kv_write.py",
        "triton": "kv_write.py quantise.py",
        "cuda": "kv_write.cu kv_write.py",
    },
    cases=_reshape_and_cache_cases,
    work=_reshape_and_cache_work,
    workloads=_reshape_and_cache_workloads,
    rows="writes the rows of a step to one cache, and the contract fixes its bits",
    in_place=("kv", "kv_scale"),
    exact=True,
    mutants=(
        ("padding is written", "(slot_mapping >= 0)", "(slot_mapping >= -1)"),
        ("one slot further", "slots % block_size", "(slots + 1) % block_size"),
        ("the next page", "slots // block_size", "(slots + 1) // block_size"),
        ("values for keys", "(key[real], value[real])", "(value[real], value[real])"),
        ("fp8 does not saturate", ".clamp(-most, most)", ".clamp(-400.0, 400.0)"),
        ("int8 truncates", "[..., None]).round()", "[..., None]).trunc()"),
        ("the scale is not stored", "kv_scale[blocks, part, :, offsets] = scale", "pass"),
    ),
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


def _paged_attention_cases(draw: Draw) -> Iterator[Case]:
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


def _paged_attention_work(
    query: Tensor, kv: Tensor, batch: AttentionBatch, *, sliding_window: int | None = None, **scales: Any
) -> Work:
    """Keys and values of every row that a query sees; 4 head_dim FLOPs for each pair of query head and key."""
    _, _, kv_heads, _, head_dim = kv.shape
    keys_read, pairs = 0, 0
    query_lens = batch.query_start_loc.diff().tolist()
    for query_len, seq_len in zip(query_lens, batch.seq_lens.tolist(), strict=True):
        first = seq_len - query_len
        begin = 0 if sliding_window is None else max(0, first - sliding_window + 1)
        keys_read += seq_len - begin
        ends = torch.arange(first + 1, seq_len + 1)
        pairs += int((ends if sliding_window is None else ends.clamp_max(sliding_window)).sum())
    per_key = 2 * kv_heads * (head_dim * kv.element_size() + (4 if kv.dtype == torch.int8 else 0))
    flops = 4 * head_dim * query.shape[1] * pairs
    return Work(query.nbytes + keys_read * per_key, query.nbytes, flops, rate_name(query.dtype))


def _paged_attention_workloads(maker: Maker) -> Iterator[Workload]:
    if maker.gpu:
        yield attention(maker, maker.largest, [(1, 4096)] * 64)
        yield attention(maker, maker.largest, [(1, 4096)] * 64, cache_dtype=FP8)
        yield attention(maker, maker.largest, [(1, 32_768)], without=("reference",))
        yield attention(maker, maker.largest, [(8192, 8192)], without=("reference",))
        yield attention(maker, maker.largest, [(512, 8192)] + [(1, 4096)] * 32, without=("reference",))
        return
    for model in maker.models:
        yield attention(maker, model, [(1, 512)] * 32)
    yield attention(maker, maker.largest, [(1, 512)] * 32, cache_dtype=torch.int8)
    yield attention(maker, maker.largest, [(1, 512)])
    yield attention(maker, maker.models[0], [(256, 1024)])


def attention(
    maker: Maker,
    model: Model,
    rows: list[tuple[int, int]],
    *,
    cache_dtype: torch.dtype | None = None,
    layers_first: bool = False,
    without: tuple[str, ...] = (),
) -> Workload:
    """rows: (query_len, seq_len). layers_first: LBHNC, each layer in one piece, in place of BLHNC."""
    cache_dtype = cache_dtype or maker.dtype
    name = f"{model.name}, {_rows_name(rows)}"
    name += "" if cache_dtype == maker.dtype else f", {dtype_name(cache_dtype)} cache"

    def copies(number: int) -> list[Case]:
        blocks = [math.ceil(seq_len / model.block_size) for _, seq_len in rows]
        shape = (1 + sum(blocks), number, 2, model.kv_heads, model.block_size, model.head_dim)
        cache = _filled_cache(maker, shape, cache_dtype, layers_first)
        ids = 1 + torch.randperm(sum(blocks), device=maker.device, dtype=torch.int32)
        table = torch.nn.utils.rnn.pad_sequence(ids.split(blocks), batch_first=True)
        query_lens, seq_lens = (torch.tensor(column, dtype=torch.int32) for column in zip(*rows, strict=True))
        starts = torch.nn.functional.pad(query_lens.cumsum(0), (1, 0)).int().to(maker.device)
        batch = AttentionBatch(starts, seq_lens.to(maker.device), table, int(query_lens.max()))
        options: dict[str, Any] = {"scale": model.head_dim**-0.5}
        options["kv_scale"] = _scales(maker, cache_dtype, shape, 0.01)
        query = maker.normal(int(query_lens.sum()), model.heads, model.head_dim)
        calls = [(query(), cache[:, layer], batch) for layer in range(number)]
        return [Case("paged_attention", name, call, options) for call in calls]

    return Workload("paged_attention", name, copies, without)


PAGED_ATTENTION = Operation(
    "paged_attention",
    forms={
        "reference": "attention.py",
        "cpu": "attention.cpp attention_products.h attention.py",
        "triton": "attention.py unified_attention.py split_kv_decode.py paged_tile.py",
        "cuda": "paged_decode.cu paged_decode_split.cu paged_problem.cuh paged_mma.cuh mma.cuh paged_fma.cuh "
        "attention.py",
    },
    cases=_paged_attention_cases,
    work=_paged_attention_work,
    workloads=_paged_attention_workloads,
    rows=_Requests(""),
    terms=_attention_terms,
    mutants=(
        ("one page too few", "-(-seq_len // block_size)", "max(1, (seq_len - 1) // block_size)"),
        ("sees the next token", "key_position <= query_position", "key_position <= query_position + 1"),
        ("the window is one longer", "> query_position - sliding", ">= query_position - sliding"),
        ("no scale", "query, key) * scale", "query, key)"),
        (
            "heads in the wrong groups",
            "key.repeat_interleave(num_heads // num_kv_heads, dim=0)",
            "key.repeat(num_heads // num_kv_heads, 1, 1)",
        ),
        ("padding is not zero", "zeros_like(query)", "ones_like(query)"),
    ),
)


def _copy_blocks_cases(draw: Draw) -> Made:
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


def _copy_blocks_work(source: Tensor, target: Tensor, block_pairs: Tensor) -> Work:
    moved = block_pairs.shape[0] * source[0].numel() * source.element_size()
    return Work(moved, moved, over_link=source.device != target.device)


def _copy_blocks_workloads(maker: Maker) -> Iterator[Workload]:
    model, layers, number = maker.models[0], 32 if maker.gpu else 6, 256
    block = (layers, 2, model.kv_heads, model.block_size, model.head_dim)
    size = f"{math.prod(block) * maker.dtype.itemsize / 2**20:.2g} MiB"
    pairs = torch.stack((torch.randperm(number), number + torch.randperm(number)), dim=1)
    name = f"{number} blocks of {size} within a cache"
    made = maker.constant(0, 2 * number, *block, dtype=maker.dtype)

    def within(copies: int) -> list[Case]:
        return [Case("copy_blocks", name, (cache, cache, pairs)) for cache in (made() for _ in range(copies))]

    yield Workload("copy_blocks", name, within)
    if maker.gpu:
        here = maker.constant(0, 64, *block, dtype=maker.dtype)
        host = partial(torch.zeros, 64, *block, dtype=maker.dtype, pin_memory=True)
        some = torch.stack((torch.randperm(64), torch.randperm(64)), dim=1)
        yield of_recipes("copy_blocks", f"64 blocks of {size} to the host", here, host, some)
        yield of_recipes("copy_blocks", f"64 blocks of {size} from the host", host, here, some)


COPY_BLOCKS = Operation(
    "copy_blocks",
    forms={"reference": "copy.py", "triton": "copy.py", "cuda": "copy.cu copy.py"},
    cases=_copy_blocks_cases,
    work=_copy_blocks_work,
    workloads=_copy_blocks_workloads,
    rows="copies whole blocks, and computes nothing",
    in_place=("target",),
    exact=True,
    mutants=(
        (
            "the wrong way round",
            "target[destination].copy_(source[origin])",
            "source[origin].copy_(target[destination])",
        ),
        ("the last pair is forgotten", "block_pairs.tolist()", "block_pairs.tolist()[:-1]"),
    ),
)


def _scales(maker: Maker, cache_dtype: torch.dtype, shape: tuple[int, ...], int8: float) -> Tensor | None:
    """Return kv_scale of one layer of a cache [blocks, layers, 2, kv_heads, block_size, head_dim]."""
    if cache_dtype == torch.int8:
        return torch.full((shape[0], *shape[2:-1]), int8, device=maker.device)
    return torch.ones(2, device=maker.device) if cache_dtype == FP8 else None


def _filled_cache(maker: Maker, shape: tuple[int, ...], dtype: torch.dtype, layers_first: bool) -> Tensor:
    """[blocks, layers, 2, kv_heads, block_size, head_dim], whatever comes first in memory."""
    if layers_first:
        shape = (shape[1], shape[0], *shape[2:])
    cache = torch.empty(shape, dtype=dtype, device=maker.device)
    numbers = maker.normal(*shape[1:], dtype=torch.float32, scale=30 if dtype == torch.int8 else 1)
    for part in cache:  # one by one: in fp32 the whole cache would not fit beside itself
        part.copy_(numbers())
    return cache.transpose(0, 1) if layers_first else cache


def _rows_name(rows: list[tuple[int, int]]) -> str:
    told = []
    for query_len, seq_len in dict.fromkeys(rows):
        if query_len == 1:
            told.append(f"decode {rows.count((query_len, seq_len))} x {seq_len}")
        else:
            told.append(f"prefill {query_len}" + (f" of {seq_len}" if seq_len > query_len else ""))
    return " + ".join(told)
