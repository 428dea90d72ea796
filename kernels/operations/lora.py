"""LoRA: shrink and expand, with an adapter for each token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.bench.workloads import Calls, Maker, Recipe
from kernels.check.draw import NAN_ROW, Draw, Made
from kernels.check.invariance import Rows
from kernels.operation import Operation, Work, last_dimension, rate_name

RANK = 16
"""Rank of the adapters that are measured."""


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


def _lora_shrink_cases(draw: Draw) -> Made:
    for number, (tokens, slices, adapters, rank) in enumerate(_lora_shapes(draw)):
        width = draw.pick(80, 320, 4096) + number % 4  # sums are often cut in four
        lora_a = draw.normal(slices, adapters, rank, width)
        x, ids = draw.strided(tokens, width), _token_adapters(draw, tokens, adapters)
        for name, matrices in _as_slots(lora_a):
            yield f"{tokens} tokens, {slices} slices, rank {rank}{name}", x, matrices, ids
    yield "no row has an adapter", draw.normal(4, width), lora_a, torch.full((4,), -1, dtype=torch.int32)
    yield NAN_ROW, draw.normal(3, width), lora_a, torch.tensor([0, 1, -1], dtype=torch.int32)


def _lora_shrink_work(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> Work:
    slices, _, rank, width = lora_a.shape
    used = token_adapter[token_adapter >= 0]
    matrices = used.unique().numel() * slices * rank * width * lora_a.element_size()
    flops = 2 * used.numel() * slices * rank * width
    return Work(x.nbytes + matrices, 4 * slices * x.shape[0] * rank, flops, rate_name(x.dtype))


def _lora_shrink_workloads(maker: Maker) -> Calls:
    tokens, width, adapters = _lora_sides(maker)
    name = f"{tokens} tokens, {tokens} adapters, {width} to {RANK}"
    yield name, maker.normal(tokens, width), maker.normal(1, tokens, RANK, width), adapters


def _lora_sides(maker: Maker) -> tuple[int, int, Recipe]:
    """Tokens, width, and every token with an adapter of its own: the worst case."""
    tokens, width = 64 if maker.gpu else 16, maker.largest.hidden
    return tokens, width, lambda: torch.randperm(tokens, device=maker.device).int()


LORA_SHRINK = Operation(
    "lora_shrink",
    forms={"reference": "lora.py", "cpu": "lora.cpp lora.py", "triton": "lora.py"},
    cases=_lora_shrink_cases,
    work=_lora_shrink_work,
    workloads=_lora_shrink_workloads,
    rows=Rows("x token_adapter", of_result=1),
    terms=last_dimension,
    mutants=(("rows without adapter get the first", "if adapter >= 0:", "if True:"),),
)


def _lora_expand_cases(draw: Draw) -> Made:
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


def _lora_expand_work(
    shrunk: Tensor, lora_b: list[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> Work:
    used = token_adapter[token_adapter >= 0]
    width, rank = sum(weight.shape[1] for weight in lora_b), shrunk.shape[2]
    matrices = used.unique().numel() * width * rank * lora_b[0].element_size()
    touched = used.numel() * width * y.element_size()
    return Work(
        shrunk.nbytes + matrices + touched, touched, 2 * used.numel() * rank * width, rate_name(y.dtype)
    )


def _lora_expand_workloads(maker: Maker) -> Calls:
    tokens, width, adapters = _lora_sides(maker)
    shrunk, lora_b = maker.normal(1, tokens, RANK, dtype=torch.float32), maker.normal(tokens, width, RANK)
    y, scaling = maker.normal(tokens, width), maker.uniform(0.5, 2, tokens)
    name = f"{tokens} tokens, {tokens} adapters, {RANK} to {width}"
    yield name, shrunk, lambda: [lora_b()], adapters, y, scaling


LORA_EXPAND = Operation(
    "lora_expand",
    forms={"reference": "lora.py", "cpu": "lora.cpp lora.py", "triton": "lora.py"},
    cases=_lora_expand_cases,
    work=_lora_expand_work,
    workloads=_lora_expand_workloads,
    rows=Rows("token_adapter y", second="shrunk"),
    in_place=("y",),
    terms=last_dimension,
    mutants=(
        ("no scaling", "added = scaling[adapter] * ", "added = "),
        ("replaces in place of adding", "wide(y[tokens, start:end]) + added", "added"),
    ),
)
