"""The shapes that are measured: layers of real models, as the engine calls them.

On a CPU two small models in fp32, on a GPU Llama-8B in bf16. Every workload makes as many copies of its data as asked
for, like the layers of a model: attention reads one cache of all layers, so that copy i is `cache[:, i]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.check.case import Case, dtype_name

FP8 = torch.float8_e4m3fn
RANK = 16
"""Rank of the LoRA adapters."""


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


Recipe = Callable[[], Any]
"""Makes one argument of a call; each copy of the data gets another one."""


def workloads(op: str, device: str) -> Iterator[Workload]:
    """Yield the workloads of an operation on a kind of device."""
    maker = Maker(device, torch.bfloat16 if device == "cuda" else torch.float32)
    for each in _WORKLOADS[op](maker):
        yield each if isinstance(each, Workload) else of_recipes(op, *each)


def of_recipes(op: str, name: str, *arguments: Any) -> Workload:
    """Build a workload from the arguments of its call: recipes, or values that all copies share."""

    def copies(number: int) -> list[Case]:
        made = ((each() if callable(each) else each for each in arguments) for _ in range(number))
        return [Case(op, name, tuple(args)) for args in made]

    return Workload(op, name, copies)


class Maker:
    """Recipes of random tensors on the device. Values do not matter for time, as long as they are finite."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.gpu = device == "cuda"
        self.models: tuple[Model, ...] = (LLAMA,) if self.gpu else (SHOP, MEDIUM)
        self.largest = self.models[-1]
        self.many = 8192 if self.gpu else 1024
        """Tokens of a prefill step."""

    def normal(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1) -> Recipe:
        return lambda: torch.randn(shape, device=self.device).mul_(scale).to(dtype or self.dtype)

    def uniform(self, low: float, high: float, *shape: int) -> Recipe:
        return lambda: torch.rand(shape, device=self.device) * (high - low) + low

    def constant(self, value: float, *shape: int, dtype: torch.dtype = torch.float32) -> Recipe:
        return lambda: torch.full(shape, value, dtype=dtype, device=self.device)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Recipe:
        return lambda: torch.randint(low, high, shape, device=self.device).to(dtype)

    def sizes(self) -> Iterator[tuple[Model, int]]:
        """Yield every model with the tokens of a decode step and of a prefill step."""
        for model in self.models:
            yield from ((model, 32), (model, self.many))


Rows = Iterator[tuple[Any, ...]]
"""Name of a workload and the arguments of its call."""


# --- dense layers ----------------------------------------------------------------------------------------------


def _linear(maker: Maker) -> Rows:
    for model in maker.models:
        for rows in (1, 32, maker.many):
            weight = maker.normal(2 * model.intermediate, model.hidden)
            yield f"{model.name} gate and up, {rows} rows", maker.normal(rows, model.hidden), weight


def _norm_linear(maker: Maker) -> Rows:
    for model in maker.models:
        for rows in (1, 32, maker.many):
            yield from _norm_linears(maker, model, rows)


def _norm_linears(maker: Maker, model: Model, rows: int) -> Rows:
    heads, width = model.heads + 2 * model.kv_heads, model.hidden
    x, norm = maker.normal(rows, width), maker.normal(width)
    angles = maker.uniform(-1, 1, rows, model.head_dim // 2)

    def rotary() -> tuple[Tensor, Tensor, int, int]:
        return angles(), angles(), model.heads + model.kv_heads, model.head_dim

    weight = maker.normal(heads * model.head_dim, width)
    yield f"{model.name} q, k, v, {rows} rows", x, x, norm, 1e-5, weight, None, False, rotary
    weight = maker.normal(2 * model.intermediate, width)
    yield f"{model.name} gate and up, {rows} rows", x, x, norm, 1e-5, weight, None, True


def _embedding(maker: Maker) -> Rows:
    for model in maker.models:
        table = maker.normal(model.vocabulary, model.hidden)()
        for rows in (32, maker.many):
            name = f"{rows} of {model.vocabulary} x {model.hidden}"
            yield name, table, maker.integers(0, model.vocabulary, rows)


def _rms_norm(maker: Maker) -> Rows:
    for model, rows in maker.sizes():
        width = model.hidden
        yield f"{rows} x {width}", maker.normal(rows, width), maker.normal(width), 1e-5


def _fused_add_rms_norm(maker: Maker) -> Rows:
    for model, rows in maker.sizes():
        width = model.hidden
        x = maker.normal(rows, width)
        yield f"{rows} x {width}", x, x, maker.normal(width), 1e-5


def _rotary_embedding(maker: Maker) -> Rows:
    for model, rows in maker.sizes():
        heads, head_dim = model.heads + model.kv_heads, model.head_dim  # of queries and keys
        fused = maker.normal(rows, heads + model.kv_heads, head_dim)
        angles = maker.uniform(-1, 1, rows, head_dim // 2)
        name = f"{rows} tokens, {heads} heads of {head_dim}"
        yield name, lambda fused=fused, heads=heads: fused()[:, :heads], angles, angles


def _silu_and_mul(maker: Maker) -> Rows:
    for model, rows in maker.sizes():
        yield f"{rows} x {model.intermediate}", maker.normal(rows, 2 * model.intermediate)


# --- the paged cache -------------------------------------------------------------------------------------------


def _reshape_and_cache(maker: Maker) -> Iterator[Workload]:
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


def _scales(maker: Maker, cache_dtype: torch.dtype, shape: tuple[int, ...], int8: float) -> Tensor | None:
    """Return kv_scale of one layer of a cache [blocks, layers, 2, kv_heads, block_size, head_dim]."""
    if cache_dtype == torch.int8:
        return torch.full((shape[0], *shape[2:-1]), int8, device=maker.device)
    return torch.ones(2, device=maker.device) if cache_dtype == FP8 else None


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
    name = f"{model.name}, {_rows_name(rows)}"
    name += "" if cache_dtype == maker.dtype else f", {dtype_name(cache_dtype)} cache"

    def copies(number: int) -> list[Case]:
        blocks = [math.ceil(seq_len / model.block_size) for _, seq_len in rows]
        shape = (1 + sum(blocks), number, 2, model.kv_heads, model.block_size, model.head_dim)
        cache = _filled_cache(maker, shape, cache_dtype, layers_first)
        ids = 1 + torch.randperm(sum(blocks), device=maker.device, dtype=torch.int32)
        table = torch.nn.utils.rnn.pad_sequence(ids.split(blocks), batch_first=True)
        query_lens, seq_lens = (torch.tensor(each, dtype=torch.int32) for each in zip(*rows, strict=True))
        starts = torch.nn.functional.pad(query_lens.cumsum(0), (1, 0)).int().to(maker.device)
        batch = AttentionBatch(starts, seq_lens.to(maker.device), table, int(query_lens.max()))
        options: dict[str, Any] = {"scale": model.head_dim**-0.5}
        options["kv_scale"] = _scales(maker, cache_dtype, shape, 0.01)
        query = maker.normal(int(query_lens.sum()), model.heads, model.head_dim)
        calls = [(query(), cache[:, layer], batch) for layer in range(number)]
        return [Case("paged_attention", name, call, options) for call in calls]

    return Workload("paged_attention", name, copies, without)


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


def _copy_blocks(maker: Maker) -> Iterator[Workload]:
    model, layers, number = (LLAMA, 32, 256) if maker.gpu else (SHOP, 6, 256)
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


# --- quantised weights -----------------------------------------------------------------------------------------


def _product_rows(maker: Maker) -> tuple[int, ...]:
    return (1, 8, 64, 2048) if maker.gpu else (1, 32, 128)


def _product(maker: Maker, rows: int) -> tuple[str, Recipe, int, int]:
    """Return name, x bf16 [rows, K], N and K of a product with the up projection of the largest model."""
    width, out = maker.largest.hidden, maker.largest.intermediate
    return f"{width} to {out}, {rows} rows", maker.normal(rows, width, dtype=torch.bfloat16), out, width


def int4(maker: Maker, rows: int) -> Workload:
    """x [rows, hidden] times the up projection, 4 bits, groups of 128."""
    name, x, out, width = _product(maker, rows)
    qweight = maker.integers(0, 256, out, width // 2, dtype=torch.uint8)
    zero = maker.integers(0, 16, out, width // 128, dtype=torch.uint8)
    scale = maker.normal(out, width // 128, dtype=torch.bfloat16, scale=0.01)
    return of_recipes("int4_linear", name, x, qweight, scale, zero, 128)


def _int4_linear(maker: Maker) -> Iterator[Workload]:
    return (int4(maker, rows) for rows in _product_rows(maker))


def _int8_linear(maker: Maker) -> Rows:
    for rows in _product_rows(maker):
        name, x, out, width = _product(maker, rows)
        qweight = maker.integers(-127, 128, out, width, dtype=torch.int8)
        yield name, x, qweight, maker.uniform(0.001, 0.01, out)


def _fp8_linear(maker: Maker) -> Rows:
    for rows in _product_rows(maker):
        name, x, out, width = _product(maker, rows)
        yield name, x, maker.normal(out, width, dtype=FP8), maker.uniform(0.001, 0.01, out)


def _grouped_linear(maker: Maker) -> Rows:
    width, out, groups = maker.largest.hidden, maker.largest.intermediate // 4, 8
    for rows in (32, maker.many // 4):
        ends = (torch.arange(1, groups + 1) * rows // groups).int().to(maker.device)
        name = f"{groups} experts, {width} to {out}, {rows} rows"
        yield name, maker.normal(rows, width), maker.normal(groups, out, width), ends


# --- LoRA ------------------------------------------------------------------------------------------------------


def _lora_sides(maker: Maker) -> tuple[int, int, Recipe]:
    """Tokens, width, and every token with an adapter of its own: the worst case."""
    tokens, width = (64, LLAMA.hidden) if maker.gpu else (16, MEDIUM.hidden)
    return tokens, width, lambda: torch.randperm(tokens, device=maker.device).int()


def _lora_shrink(maker: Maker) -> Rows:
    tokens, width, adapters = _lora_sides(maker)
    name = f"{tokens} tokens, {tokens} adapters, {width} to {RANK}"
    yield name, maker.normal(tokens, width), maker.normal(1, tokens, RANK, width), adapters


def _lora_expand(maker: Maker) -> Rows:
    tokens, width, adapters = _lora_sides(maker)
    shrunk, lora_b = maker.normal(1, tokens, RANK, dtype=torch.float32), maker.normal(tokens, width, RANK)
    y, scaling = maker.normal(tokens, width), maker.uniform(0.5, 2, tokens)
    name = f"{tokens} tokens, {tokens} adapters, {RANK} to {width}"
    yield name, shrunk, lambda: [lora_b()], adapters, y, scaling


# --- choosing tokens -------------------------------------------------------------------------------------------


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
    shape, logits, (rows, vocabulary) = _logits(maker)
    numbers = maker.constant(top_k or vocabulary, rows, dtype=torch.int32)
    heat, *limits = (maker.constant(value, rows) for value in (temperature, top_p, min_p))
    keys = maker.integers(-(2**31), 2**31, rows, 2, dtype=torch.int32)
    return of_recipes("sample", f"{shape}, {name}", logits, heat, numbers, *limits, keys)


def _logits(maker: Maker) -> tuple[str, Recipe, tuple[int, int]]:
    """Return name, logits and shape of a full batch."""
    rows, vocabulary = shape = (256, LLAMA.vocabulary) if maker.gpu else (32, MEDIUM.vocabulary)
    return f"{rows} x {vocabulary}", maker.normal(*shape, dtype=torch.float32, scale=3), shape


def _apply_penalties(maker: Maker) -> Rows:
    name, logits, (rows, vocabulary) = _logits(maker)
    chance = maker.uniform(0, 1, rows, vocabulary)
    number = maker.integers(-99, 2, rows, vocabulary, dtype=torch.int32)
    penalties = maker.uniform(1, 1.2, rows), maker.uniform(0, 1, rows), maker.uniform(0, 1, rows)
    yield name, logits, lambda: chance() < 0.01, lambda: number().clamp_min_(0), *penalties


def _gather_logprobs(maker: Maker) -> Rows:
    name, logits, (rows, vocabulary) = _logits(maker)
    yield name, logits, maker.integers(0, vocabulary, rows)


def _apply_token_bitmask(maker: Maker) -> Rows:
    name, logits, (rows, vocabulary) = _logits(maker)
    yield name, logits, maker.integers(-(2**31), 2**31, rows, -(-vocabulary // 32), dtype=torch.int32)


_WORKLOADS: dict[str, Callable[[Maker], Iterator[Any]]] = {
    "linear": _linear,
    "gated_linear": _linear,
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
