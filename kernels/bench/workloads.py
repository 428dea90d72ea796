"""The shapes that are measured: layers of real models, as the engine calls them.

On a CPU two small models in fp32, on a GPU Llama-8B in bf16. Every workload makes as many copies of its data as asked
for, like the layers of a model: attention reads one cache of all layers, so that copy i is `cache[:, i]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.check.case import Case, dtype_name
from kernels.reference.int4 import quantise_int4

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Model:
    """The sides of a model's layers."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    block_size: int


SHOP = Model("shop", 256, 8, 4, 32, 640, 2048, 32)
MEDIUM = Model("386M", 896, 14, 2, 64, 4864, 32_000, 32)
LLAMA = Model("Llama-8B", 4096, 32, 8, 128, 14_336, 128_256, 16)


@dataclass(frozen=True, slots=True)
class Workload:
    """A call worth measuring."""

    op: str
    name: str
    make: Callable[[int], list[Case]]
    """Return this many copies, each in its own memory."""
    without: tuple[str, ...] = ()
    """Implementations and yardsticks that would need too much memory or time here."""


def workloads(op: str, device: str) -> list[Workload]:
    """Return the workloads of an operation on a kind of device."""
    maker = Maker(device, torch.bfloat16 if device == "cuda" else torch.float32)
    return list(_WORKLOADS[op](maker))


class Maker:
    """Random tensors on the device. Values do not matter for time, as long as they are finite."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def models(self) -> tuple[Model, ...]:
        return (LLAMA,) if self.gpu else (SHOP, MEDIUM)

    @property
    def largest(self) -> Model:
        return self.models[-1]

    @property
    def many(self) -> int:
        """Tokens of a prefill step."""
        return 8192 if self.gpu else 1024

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, device=self.device).to(dtype or self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(shape, device=self.device) * (high - low) + low

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, shape, device=self.device, dtype=torch.int64).to(dtype)

    def workload(
        self, op: str, name: str, make: Callable[..., tuple[Any, ...]], without: tuple[str, ...] = ()
    ) -> Workload:
        """`make` gives the arguments of one copy."""

        def copies(number: int) -> list[Case]:
            return [Case(op, name, make()) for _ in range(number)]

        return Workload(op, name, copies, without)


# --- dense layers ----------------------------------------------------------------------------------------------


def _linear(maker: Maker) -> Iterator[Workload]:
    for model in maker.models:
        for rows in (1, 32, maker.many):
            width, out = model.hidden, 2 * model.intermediate
            yield maker.workload(
                "linear",
                f"{model.name} gate and up, {rows} rows",
                lambda rows=rows, width=width, out=out: (maker.normal(rows, width), maker.normal(out, width)),
            )


def _embedding(maker: Maker) -> Iterator[Workload]:
    for model in maker.models:
        table = maker.normal(model.vocabulary, model.hidden)
        for rows in (32, maker.many):
            yield maker.workload(
                "embedding",
                f"{rows} of {model.vocabulary} x {model.hidden}",
                lambda rows=rows, table=table: (
                    table,
                    maker.integers(0, table.shape[0], rows, dtype=torch.int64),
                ),
            )


def _rms_norm(maker: Maker) -> Iterator[Workload]:
    for model in maker.models:
        for rows in (32, maker.many):
            yield maker.workload(
                "rms_norm",
                f"{rows} x {model.hidden}",
                lambda rows=rows, width=model.hidden: (maker.normal(rows, width), maker.normal(width), 1e-5),
            )


def _fused_add_rms_norm(maker: Maker) -> Iterator[Workload]:
    for model in maker.models:
        for rows in (32, maker.many):
            yield maker.workload(
                "fused_add_rms_norm",
                f"{rows} x {model.hidden}",
                lambda rows=rows, width=model.hidden: (
                    maker.normal(rows, width),
                    maker.normal(rows, width),
                    maker.normal(width),
                    1e-5,
                ),
            )


def _rotary_embedding(maker: Maker) -> Iterator[Workload]:
    for model in maker.models:
        heads = model.heads + model.kv_heads

        def make(rows: int, model: Model = model, heads: int = heads) -> tuple[Any, ...]:
            fused = maker.normal(rows, (heads + model.kv_heads) * model.head_dim)
            x = fused[:, : heads * model.head_dim].view(rows, heads, model.head_dim)
            angle = maker.uniform(0, 100, rows, model.head_dim // 2)
            return x, angle.cos(), angle.sin()

        for rows in (32, maker.many):
            name = f"{rows} tokens, {heads} heads of {model.head_dim}"
            yield maker.workload("rotary_embedding", name, lambda rows=rows, make=make: make(rows))


def _silu_and_mul(maker: Maker) -> Iterator[Workload]:
    for model in maker.models:
        for rows in (32, maker.many):
            width = 2 * model.intermediate
            yield maker.workload(
                "silu_and_mul",
                f"{rows} x {model.intermediate}",
                lambda rows=rows, width=width: (maker.normal(rows, width),),
            )


# --- the paged cache -------------------------------------------------------------------------------------------


def _reshape_and_cache(maker: Maker) -> Iterator[Workload]:
    dtypes = (maker.dtype, FP8) if maker.gpu else (maker.dtype, torch.int8)
    for model in maker.models:
        for dtype in dtypes:
            yield _kv_write(maker, model, maker.many, dtype)
    yield _kv_write(maker, maker.largest, 32, maker.dtype)


def _kv_write(maker: Maker, model: Model, rows: int, cache_dtype: torch.dtype) -> Workload:
    name = f"{model.name}, {rows} tokens to {dtype_name(cache_dtype)}"

    def copies(number: int) -> list[Case]:
        num_blocks = 1 + math.ceil(rows / model.block_size)
        shape = (num_blocks, number, 2, model.kv_heads, model.block_size, model.head_dim)
        cache = torch.zeros(shape, dtype=cache_dtype, device=maker.device)
        scales = torch.ones(shape[:-1], device=maker.device)
        slots = torch.arange(model.block_size, model.block_size + rows, device=maker.device)
        result = []
        for layer in range(number):
            width = model.kv_heads * model.head_dim
            fused = maker.normal(rows, (model.heads // model.kv_heads + 2) * width)
            key, value = (part.view(rows, model.kv_heads, -1) for part in fused[:, -2 * width :].chunk(2, 1))
            scale = scales[:, layer] if cache_dtype == torch.int8 else None
            if cache_dtype == FP8:
                scale = torch.ones(2, device=maker.device)
            result.append(Case("reshape_and_cache", name, (key, value, cache[:, layer], slots, scale)))
        return result

    return Workload("reshape_and_cache", name, copies)


def _paged_attention(maker: Maker) -> Iterator[Workload]:
    if maker.gpu:
        yield attention(maker, LLAMA, [(1, 4096)] * 64)
        yield attention(maker, LLAMA, [(1, 4096)] * 64, cache_dtype=FP8)
        yield attention(maker, LLAMA, [(1, 32_768)], without=("reference",))
        yield attention(maker, LLAMA, [(8192, 8192)], without=("reference",))
        yield attention(maker, LLAMA, [(512, 8192)] + [(1, 4096)] * 32, without=("reference",))
        return
    for model in (SHOP, MEDIUM):
        yield attention(maker, model, [(1, 512)] * 32)
    yield attention(maker, MEDIUM, [(1, 512)] * 32, cache_dtype=torch.int8)
    yield attention(maker, MEDIUM, [(1, 512)])
    yield attention(maker, SHOP, [(256, 1024)])


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
    name = f"{model.name}, {_rows_name(rows)}" + (
        "" if cache_dtype == maker.dtype else f", {dtype_name(cache_dtype)} cache"
    )

    def copies(number: int) -> list[Case]:
        blocks = [math.ceil(seq_len / model.block_size) for _, seq_len in rows]
        shape = [1 + sum(blocks), number, 2, model.kv_heads, model.block_size, model.head_dim]
        cache = _filled_cache(maker, shape, cache_dtype, layers_first)
        ids = 1 + torch.randperm(sum(blocks), device=maker.device, dtype=torch.int32)
        table = torch.zeros(len(rows), max(blocks), dtype=torch.int32, device=maker.device)
        for row, own in enumerate(ids.split(blocks)):
            table[row, : len(own)] = own
        query_lens = torch.tensor([query_len for query_len, _ in rows])
        starts = torch.cat((torch.zeros(1), query_lens.cumsum(0))).int().to(maker.device)
        seq_lens = torch.tensor([seq_len for _, seq_len in rows], dtype=torch.int32, device=maker.device)
        batch = AttentionBatch(starts, seq_lens, table, int(query_lens.max()))
        options = {"scale": model.head_dim**-0.5}
        if cache_dtype == FP8:
            options["kv_scale"] = torch.ones(2, device=maker.device)
        if cache_dtype == torch.int8:
            options["kv_scale"] = torch.full(shape[:1] + shape[2:-1], 0.01, device=maker.device)
        query = [maker.normal(int(query_lens.sum()), model.heads, model.head_dim) for _ in range(number)]
        return [
            Case("paged_attention", name, (query[layer], cache[:, layer], batch), options)
            for layer in range(number)
        ]

    return Workload("paged_attention", name, copies, without)


def _filled_cache(maker: Maker, shape: list[int], dtype: torch.dtype, layers_first: bool) -> Tensor:
    """[blocks, layers, 2, kv_heads, block_size, head_dim], whatever comes first in memory."""
    if layers_first:
        shape = [shape[1], shape[0], *shape[2:]]
    cache = torch.empty(shape, dtype=dtype, device=maker.device)
    for part in cache:  # one by one: in fp32 the whole cache would not fit beside itself
        part.copy_(maker.normal(*part.shape, dtype=torch.float32).mul_(30 if dtype == torch.int8 else 1))
    return cache.transpose(0, 1) if layers_first else cache


def _rows_name(rows: list[tuple[int, int]]) -> str:
    told = []
    for query_len, seq_len in dict.fromkeys(rows):
        count = rows.count((query_len, seq_len))
        if query_len == 1:
            told.append(f"decode {count} x {seq_len}")
        else:
            told.append(f"prefill {query_len}" + (f" of {seq_len}" if seq_len > query_len else ""))
    return " + ".join(told)


def _copy_blocks(maker: Maker) -> Iterator[Workload]:
    model, layers, number = (LLAMA, 32, 256) if maker.gpu else (SHOP, 6, 256)
    shape = (2 * number, layers, 2, model.kv_heads, model.block_size, model.head_dim)
    pairs = torch.stack((torch.randperm(number), number + torch.randperm(number)), dim=1)
    megabytes = math.prod(shape[1:]) * maker.dtype.itemsize / 2**20

    def within() -> tuple[Any, ...]:
        cache = torch.zeros(shape, dtype=maker.dtype, device=maker.device)
        return cache, cache, pairs

    yield maker.workload("copy_blocks", f"{number} blocks of {megabytes:.2g} MiB within a cache", within)
    if not maker.gpu:
        return
    here = torch.zeros((64, *shape[1:]), dtype=maker.dtype, device="cuda")
    host = torch.zeros((64, *shape[1:]), dtype=maker.dtype, pin_memory=True)
    some = torch.stack((torch.randperm(64), torch.randperm(64)), dim=1)
    for name, arguments in (("to the host", (here, host, some)), ("from the host", (host, here, some))):
        yield maker.workload("copy_blocks", f"64 blocks of {megabytes:.2g} MiB {name}", lambda a=arguments: a)


# --- quantised weights -----------------------------------------------------------------------------------------


def _row_counts(maker: Maker) -> tuple[int, ...]:
    return (1, 8, 64, 2048) if maker.gpu else (1, 32)


def _int4_linear(maker: Maker) -> Iterator[Workload]:
    for rows in _row_counts(maker):
        yield int4(maker, rows)


def int4(maker: Maker, rows: int) -> Workload:
    """x [rows, hidden] times the up projection, 4 bits, groups of 128."""
    width, out = maker.largest.hidden, maker.largest.intermediate

    def make() -> tuple[Any, ...]:
        qweight, scale, zero = quantise_int4(maker.normal(out, width), 128)
        return maker.normal(rows, width), qweight, scale, zero, 128

    return maker.workload("int4_linear", f"{width} to {out}, {rows} rows", make)


def _int8_linear(maker: Maker) -> Iterator[Workload]:
    width, out = maker.largest.hidden, maker.largest.intermediate
    for rows in _row_counts(maker):
        yield maker.workload(
            "int8_linear",
            f"{width} to {out}, {rows} rows",
            lambda rows=rows: (
                maker.normal(rows, width),
                maker.integers(-127, 128, out, width, dtype=torch.int8),
                maker.uniform(0.001, 0.01, out),
            ),
        )


def _fp8_linear(maker: Maker) -> Iterator[Workload]:
    width, out = maker.largest.hidden, maker.largest.intermediate
    for rows in _row_counts(maker):
        yield maker.workload(
            "fp8_linear",
            f"{width} to {out}, {rows} rows",
            lambda rows=rows: (
                maker.normal(rows, width),
                maker.normal(out, width).to(FP8),
                maker.uniform(0.001, 0.01, out),
            ),
        )


def _grouped_linear(maker: Maker) -> Iterator[Workload]:
    width, out, groups = maker.largest.hidden, maker.largest.intermediate // 4, 8
    for rows in (32, maker.many // 4):
        ends = (torch.arange(1, groups + 1) * rows // groups).int().to(maker.device)
        yield maker.workload(
            "grouped_linear",
            f"{groups} experts, {width} to {out}, {rows} rows",
            lambda rows=rows, ends=ends: (maker.normal(rows, width), maker.normal(groups, out, width), ends),
        )


# --- LoRA ------------------------------------------------------------------------------------------------------

RANK = 16


def _adapters(maker: Maker, tokens: int) -> Tensor:
    """Every token with an adapter of its own: the worst case."""
    return torch.randperm(tokens, device=maker.device).int()


def _lora_shrink(maker: Maker) -> Iterator[Workload]:
    tokens, width = (64, LLAMA.hidden) if maker.gpu else (16, MEDIUM.hidden)
    yield maker.workload(
        "lora_shrink",
        f"{tokens} tokens, {tokens} adapters, {width} to {RANK}",
        lambda: (maker.normal(tokens, width), maker.normal(1, tokens, RANK, width), _adapters(maker, tokens)),
    )


def _lora_expand(maker: Maker) -> Iterator[Workload]:
    tokens, width = (64, LLAMA.hidden) if maker.gpu else (16, MEDIUM.hidden)
    yield maker.workload(
        "lora_expand",
        f"{tokens} tokens, {tokens} adapters, {RANK} to {width}",
        lambda: (
            maker.normal(1, tokens, RANK, dtype=torch.float32),
            [maker.normal(tokens, width, RANK)],
            _adapters(maker, tokens),
            maker.normal(tokens, width),
            maker.uniform(0.5, 2, tokens),
        ),
    )


# --- choosing tokens -------------------------------------------------------------------------------------------


def _logit_rows(maker: Maker) -> tuple[int, int]:
    return (256, LLAMA.vocabulary) if maker.gpu else (32, MEDIUM.vocabulary)


def _sample(maker: Maker) -> Iterator[Workload]:
    yield sampling(maker, "greedy", temperature=0.0)
    yield sampling(maker, "temperature")
    yield sampling(maker, "top-k 50", top_k=50)
    yield sampling(maker, "top-p 0.9", top_p=0.9)
    yield sampling(maker, "top-k 50, top-p 0.9, min-p 0.05", top_k=50, top_p=0.9, min_p=0.05)


def sampling(
    maker: Maker,
    name: str,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Workload:
    """One step of sampling for a full batch."""
    rows, vocabulary = _logit_rows(maker)

    def make() -> tuple[Any, ...]:
        def one(value: float) -> Tensor:
            return torch.full((rows,), value, device=maker.device)

        return (
            maker.normal(rows, vocabulary, dtype=torch.float32) * 3,
            one(temperature),
            one(top_k or vocabulary).int(),
            one(top_p),
            one(min_p),
            maker.integers(-(2**31), 2**31, rows, 2, dtype=torch.int32),
        )

    return maker.workload("sample", f"{rows} x {vocabulary}, {name}", make)


def _apply_penalties(maker: Maker) -> Iterator[Workload]:
    rows, vocabulary = _logit_rows(maker)
    yield maker.workload(
        "apply_penalties",
        f"{rows} x {vocabulary}",
        lambda: (
            maker.normal(rows, vocabulary, dtype=torch.float32),
            maker.uniform(0, 1, rows, vocabulary) < 0.01,
            maker.integers(-99, 2, rows, vocabulary, dtype=torch.int32).clamp_min_(0),
            maker.uniform(1, 1.2, rows),
            maker.uniform(0, 1, rows),
            maker.uniform(0, 1, rows),
        ),
    )


def _gather_logprobs(maker: Maker) -> Iterator[Workload]:
    rows, vocabulary = _logit_rows(maker)
    yield maker.workload(
        "gather_logprobs",
        f"{rows} x {vocabulary}",
        lambda: (
            maker.normal(rows, vocabulary, dtype=torch.float32),
            maker.integers(0, vocabulary, rows, dtype=torch.int64),
        ),
    )


def _apply_token_bitmask(maker: Maker) -> Iterator[Workload]:
    rows, vocabulary = _logit_rows(maker)
    yield maker.workload(
        "apply_token_bitmask",
        f"{rows} x {vocabulary}",
        lambda: (
            maker.normal(rows, vocabulary, dtype=torch.float32),
            maker.integers(-(2**31), 2**31, rows, math.ceil(vocabulary / 32), dtype=torch.int32),
        ),
    )


_WORKLOADS: dict[str, Callable[[Maker], Iterator[Workload]]] = {
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
