"""From logits to tokens: penalties, masks, sampling, logprobs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from kernels.bench.workloads import Calls, Maker, Recipe, Workload, of_recipes
from kernels.check.draw import NAN_ROW, Draw, Made
from kernels.check.invariance import Rows
from kernels.operation import Operation, Work, last_dimension


def _vocabularies(draw: Draw) -> tuple[int, ...]:
    return (32, draw.pick(77, 1000, 32000), draw.pick(300, 4099, 128256))


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


def _sample_cases(draw: Draw) -> Made:
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


def _sample_workloads(maker: Maker) -> Iterator[Workload]:
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
    shape, logits, (rows, vocabulary) = _full_batch(maker)
    numbers = maker.constant(top_k or vocabulary, rows, dtype=torch.int32)
    heat, *limits = (maker.constant(value, rows) for value in (temperature, top_p, min_p))
    keys = maker.integers(-(2**31), 2**31, rows, 2, dtype=torch.int32)
    return of_recipes("sample", f"{shape}, {name}", logits, heat, numbers, *limits, keys)


SAMPLE = Operation(
    "sample",
    forms={
        "reference": "sampling.py",
        "cpu": "sampling.cpp sampling.py",
        "triton": "sampling.py",
        "cuda": "sampling.cu sampling.py",
    },
    cases=_sample_cases,
    # The logits once; a filter needs more passes: that is what its share shows.
    work=lambda logits, *parameters: Work(logits.nbytes, 12 * logits.shape[0]),
    workloads=_sample_workloads,
    rows=Rows("logits temperature top_k top_p min_p keys"),
    open_for_nan=True,
    terms=last_dimension,
    mutants=(
        (
            "top_k lets one more through",
            "top_k[:, None].long() - 1",
            "top_k[:, None].long().clamp_max(x.shape[-1] - 1)",
        ),
        (
            "top_p stops one early",
            "mass < top_p[:, None]).sum(-1, keepdim=True)",
            "mass < top_p[:, None]).sum(-1, keepdim=True).sub(1).clamp_min(0)",
        ),
        ("min_p is ignored", "min_p.to(x.dtype).log()[:, None]", "min_p.to(x.dtype).mul(0).log()[:, None]"),
        ("temperature multiplies", "/ torch.where(random", "* torch.where(random"),
        ("the second key is ignored", ">> 13)) + second)", ">> 13)))"),
    ),
)


def _on_logits(draw: Draw) -> Iterator[tuple[str, Tensor]]:
    """Yield name and logits."""
    for vocabulary, rows in product(_vocabularies(draw), (0, 1, draw.pick(3, 16, 64))):
        yield f"{rows} x {vocabulary}", _logits(draw, rows, vocabulary)


def _apply_penalties_cases(draw: Draw) -> Made:
    for name, logits in _on_logits(draw):
        counts = (draw.integers(-6, 4, *logits.shape)).clamp_min(0).int()
        in_prompt = draw.uniform(0, 1, *logits.shape) < 0.2
        penalties = [draw.uniform(low, high, len(logits)) for low, high in ((0.5, 2), (-1, 1), (-1, 1))]
        yield name, logits, in_prompt, counts, *penalties
    yield NAN_ROW, logits, in_prompt, counts, *penalties


def _apply_penalties_workloads(maker: Maker) -> Calls:
    name, logits, (rows, vocabulary) = _full_batch(maker)
    chance = maker.uniform(0, 1, rows, vocabulary)
    number = maker.integers(-99, 2, rows, vocabulary, dtype=torch.int32)
    penalties = maker.uniform(1, 1.2, rows), maker.uniform(0, 1, rows), maker.uniform(0, 1, rows)
    yield name, logits, lambda: chance() < 0.01, lambda: number().clamp_min_(0), *penalties


def _full_batch(maker: Maker) -> tuple[str, Recipe, tuple[int, int]]:
    """Return name, logits and shape of a full batch."""
    rows, vocabulary = shape = 256 if maker.gpu else 32, maker.largest.vocabulary
    return f"{rows} x {vocabulary}", maker.normal(*shape, dtype=torch.float32, scale=3), shape


APPLY_PENALTIES = Operation(
    "apply_penalties",
    forms={"reference": "penalties.py", "triton": "penalties.py"},
    cases=_apply_penalties_cases,
    work=lambda logits, in_prompt, output_counts, *parameters: Work(
        logits.nbytes + in_prompt.nbytes + output_counts.nbytes, logits.nbytes
    ),
    workloads=_apply_penalties_workloads,
    rows=Rows("logits in_prompt output_counts repetition presence frequency"),
    in_place=("logits",),
    mutants=(
        ("prompt tokens go free", "in_prompt | in_output, repetition", "in_output, repetition"),
        ("presence counts", "presence[:, None] * in_output", "presence[:, None] * output_counts"),
    ),
)


def _gather_logprobs_cases(draw: Draw) -> Made:
    for name, logits in _on_logits(draw):
        ids = draw.integers(0, logits.shape[1], len(logits))
        yield name, logits, ids
    yield NAN_ROW, logits, ids
    yield "many ties", draw.integers(-1, 2, 4, 50).float(), draw.integers(0, 50, 4)
    masked = _logits(draw, 2, 50)
    masked[:, 10:] = float("-inf")
    yield "most tokens forbidden", masked, torch.tensor([3, 40])


def _gather_logprobs_workloads(maker: Maker) -> Calls:
    name, logits, (rows, vocabulary) = _full_batch(maker)
    yield name, logits, maker.integers(0, vocabulary, rows)


GATHER_LOGPROBS = Operation(
    "gather_logprobs",
    forms={"reference": "logprobs.py", "triton": "logprobs.py"},
    cases=_gather_logprobs_cases,
    work=lambda logits, token_ids: Work(logits.nbytes, 12 * logits.shape[0]),
    workloads=_gather_logprobs_workloads,
    rows=Rows("logits token_ids"),
    open_for_nan=True,
    terms=last_dimension,
    mutants=(
        ("ties push down", "(logits > chosen)", "(logits >= chosen)"),
        ("rank counts from 0", ".sum(-1) + 1", ".sum(-1)"),
    ),
)


def _apply_token_bitmask_cases(draw: Draw) -> Made:
    for name, logits in _on_logits(draw):
        num_words = math.ceil(logits.shape[1] / 32)
        yield name, logits, draw.integers(-(2**31), 2**31, len(logits), num_words, dtype=torch.int32)
    yield "all and nothing", _logits(draw, 2, 70), torch.tensor([[-1] * 3, [0] * 3]).int()


def _apply_token_bitmask_workloads(maker: Maker) -> Calls:
    name, logits, (rows, vocabulary) = _full_batch(maker)
    yield name, logits, maker.integers(-(2**31), 2**31, rows, -(-vocabulary // 32), dtype=torch.int32)


APPLY_TOKEN_BITMASK = Operation(
    "apply_token_bitmask",
    forms={"reference": "bitmask.py", "cpu": "sampling.cpp sampling.py", "triton": "bitmask.py"},
    cases=_apply_token_bitmask_cases,
    work=lambda logits, bitmask: Work(logits.nbytes + bitmask.nbytes, logits.nbytes),
    workloads=_apply_token_bitmask_workloads,
    rows=Rows("logits bitmask"),
    in_place=("logits",),
    exact=True,
    mutants=(
        ("allows what is forbidden", "masked_fill_(~allowed", "masked_fill_(allowed"),
        ("bits from the other end", ">> bits", ">> (31 - bits)"),
    ),
)


def _logits(draw: Draw, rows: int, vocabulary: int) -> Tensor:
    return draw.normal(rows, vocabulary, dtype=torch.float32) * 3
