"""Choices that only a GPU can settle, each as a small experiment with its answer.

Which layout of the cache, how long a split of split-KV decoding, from how many rows on a 4-bit product pays no more,
and what choosing a token costs beside one look at the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from kernels import registry
from kernels.bench.run import BenchReport, Tell
from kernels.bench.timing import Call, interleaved
from kernels.bench.workloads import LLAMA, Maker, Model, Workload, attention, int4, sampling
from kernels.bench.yardsticks import yardsticks
from kernels.check.case import Case

SPLITS = (128, 256, 512, 1024, 2048)
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 128, 256)
LAYERS = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """A table, and what follows from it."""

    question: str
    headings: list[str]
    rows: list[list[str]]
    conclusion: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """Device, data and backends that answer the questions."""

    maker: Maker
    backends: tuple[str, ...]
    seconds: float = 0.3

    def times(self, calls: dict[str, Call]) -> dict[str, float]:
        """Median seconds, measured in turn."""
        timings = interleaved(calls, self.maker.device, seconds=self.seconds)
        return {name: timing.median for name, timing in timings.items()}

    def calls(self, workload: Workload, copies: int) -> dict[str, Call]:
        """The implementations that take this workload."""
        cases = workload.make(copies)
        return {name: call for name in self.backends if (call := _call(name, cases)) is not None}


def answer_all(report: BenchReport, tell: Tell) -> None:
    """Ask every question on the GPU; one that cannot be answered does not take the others with it."""
    experiment = Experiment(Maker("cuda", torch.bfloat16), ("triton", "cuda"))
    for ask in (layout, split_size, int4_crossover, sampling_cost):
        tell(str(ask.__doc__).splitlines()[0])
        torch.cuda.empty_cache()
        try:
            with torch.inference_mode():
                report.answers.append(ask(experiment))
        except Exception as error:
            report.answers.append(
                Answer(str(ask.__doc__).splitlines()[0], ["error"], [[str(error)]], "No answer.")
            )


def _call(backend: str, cases: Sequence[Case]) -> Call | None:
    """The implementation on any of the copies; None if it is not there or does not take them."""
    op, first = cases[0].op, cases[0]
    if all(each.backend != backend for each in registry.implementations(op)) or registry.unavailable(backend):
        return None
    implementation = registry.get(op, backend)
    if implementation.unsupported(*first.args, **first.kwargs):
        return None
    return _on_copies(implementation.load(), cases)


def _on_copies(function: Callable[..., Any], cases: Sequence[Case], **more: Any) -> Call:
    def call(number: int) -> object:
        case = cases[number % len(cases)]
        return function(*case.args, **case.kwargs, **more)

    return call


def layout(
    experiment: Experiment, model: Model = LLAMA, rows: Sequence[tuple[int, int]] = ((1, 4096),) * 64
) -> Answer:
    """Blocks of all layers together (BLHNC), or each layer in one piece (LBHNC)?"""
    layers = _layers_that_fit(experiment.maker, model, rows)
    calls: dict[str, Call] = {}
    for name, layers_first in (("BLHNC", False), ("LBHNC", True)):
        workload = attention(experiment.maker, model, list(rows), layers_first=layers_first)
        found = experiment.calls(workload, layers)
        calls |= {f"{backend} {name}": call for backend, call in found.items()}
    times = experiment.times(calls)
    lines, told = [], []
    for backend in dict.fromkeys(name.split()[0] for name in times):
        together, apart = times[f"{backend} BLHNC"], times[f"{backend} LBHNC"]
        lines.append([backend, _us(together), _us(apart), f"{together / apart:.3f}"])
        told.append(f"{backend}: BLHNC takes {together / apart:.3f} times as long as LBHNC")
    return Answer(
        f"Blocks of all layers together (BLHNC), or each layer in one piece (LBHNC)? {workload.name}, {layers} layers",
        ["implementation", "BLHNC", "LBHNC", "BLHNC / LBHNC"],
        lines,
        "; ".join(told) + ".",
    )


def _layers_that_fit(maker: Maker, model: Model, rows: Sequence[tuple[int, int]]) -> int:
    """Two caches have to fit, and some room beside them."""
    if not maker.gpu:
        return 2
    free, _ = torch.cuda.mem_get_info()
    tokens = sum(seq_len for _, seq_len in rows)
    layer = 2 * tokens * model.kv_heads * model.head_dim * maker.dtype.itemsize
    return max(1, min(LAYERS, int(0.35 * free) // layer))


def split_size(
    experiment: Experiment,
    model: Model = LLAMA,
    batches: Sequence[Sequence[tuple[int, int]]] = (((1, 32_768),), ((1, 4096),) * 8, ((1, 4096),) * 64),
) -> Answer:
    """How many tokens should one split of split-KV decoding have?"""
    lines, best = [], []
    for rows in batches:
        workload = attention(experiment.maker, model, list(rows))
        cases = workload.make(2)
        for backend in experiment.backends:
            times = experiment.times(dict(_splits(backend, cases)))
            if times:
                lines.append([workload.name, backend, *(_us(times[str(split)]) for split in SPLITS)])
                best.append(f"{workload.name}, {backend}: {min(times, key=times.__getitem__)}")
    return Answer(
        "How many tokens should one split of split-KV decoding have?",
        ["batch", "implementation", *map(str, SPLITS)],
        lines,
        "Fastest: " + "; ".join(best) + ".",
    )


def _splits(backend: str, cases: Sequence[Case]) -> Iterator[tuple[str, Call]]:
    """The decode kernels with other split sizes than their own."""
    if _call(backend, cases) is None:
        return
    for split in SPLITS:
        if backend == "cuda":
            from kernels.cuda.attention import decode_split

            yield str(split), _on_copies(decode_split, cases, split=split)
        elif backend == "triton":
            from kernels.triton_ops import split_kv_decode
            from kernels.triton_ops.attention import paged_attention

            setting = patch.object(split_kv_decode, "SPLIT", split)
            yield str(split), _inside(setting, _on_copies(paged_attention, cases))


def _inside(setting: Any, call: Call) -> Call:
    def run(number: int) -> object:
        with setting:
            return call(number)

    return run


def int4_crossover(experiment: Experiment, rows: Sequence[int] = ROWS) -> Answer:
    """From how many rows on does a 4-bit product pay no more?"""
    lines, gemv_until, pays_until = [], 0, 0
    for number in rows:
        workload = int4(experiment.maker, number)
        cases = workload.make(4)
        calls = {name: call for name in experiment.backends if (call := _call(name, cases)) is not None}
        dense = yardsticks(cases)[0]["dense weights"]
        times = experiment.times({**calls, "dense": dense})
        ours = {name: seconds for name, seconds in times.items() if name != "dense"}
        if min(ours, key=ours.__getitem__) == "cuda":
            gemv_until = number
        if min(ours.values()) < times["dense"]:
            pays_until = number
        names = (*experiment.backends, "dense")
        lines.append([str(number), *(_us(times[name]) if name in times else "" for name in names)])
    return Answer(
        "From how many rows on does a 4-bit product pay no more?",
        ["rows", *experiment.backends, "dense weights"],
        lines,
        f"The CUDA GEMV is the fastest up to {gemv_until} rows; 4 bits beat dense weights up to {pays_until} rows.",
    )


def sampling_cost(experiment: Experiment) -> Answer:
    """Compare the cost of noise and filters with one pass over the logits."""
    settings: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "noise": {},
        "noise, top-k 50": {"top_k": 50},
        "noise, top-p 0.9": {"top_p": 0.9},
        "noise, top-k, top-p, min-p": {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
    }
    times: dict[str, dict[str, float]] = {}
    for name, options in settings.items():
        times[name] = experiment.times(experiment.calls(sampling(experiment.maker, name, **options), 3))
    lines = [
        [
            name,
            *(f"{_us(each[backend])} = {each[backend] / times['greedy'][backend]:.2f} x" for backend in each),
        ]
        for name, each in times.items()
    ]
    told = [
        f"{backend}: noise costs {times['noise'][backend] / times['greedy'][backend] - 1:+.0%} on top of greedy, "
        f"top-p as much as {times['noise, top-p 0.9'][backend] / times['noise'][backend]:.1f} passes"
        for backend in times["greedy"]
    ]
    return Answer(
        "What do noise and filters cost beside one look at the logits?",
        ["rows that want", *times["greedy"]],
        lines,
        "; ".join(told) + ".",
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"
