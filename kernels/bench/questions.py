"""Choices that only a GPU can settle, each as a small experiment with its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from kernels.bench.run import BenchReport, Tell, implementation_on, on_copies
from kernels.bench.timing import Call, interleaved
from kernels.bench.workloads import LLAMA, Maker, Model
from kernels.bench.yardsticks import yardsticks
from kernels.check.case import Case
from kernels.operations.cache import attention
from kernels.operations.choosing import sampling
from kernels.operations.quantised import int4
from kernels.registry import UnsupportedInput

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

    def calls(self, cases: Sequence[Case]) -> dict[str, Call]:
        """The implementations that take these copies of a workload."""
        calls = {}
        for backend in self.backends:
            try:
                calls[backend] = implementation_on(cases, backend)
            except UnsupportedInput:
                continue
        return calls


def answer_all(report: BenchReport, tell: Tell) -> None:
    """Ask every question on the GPU; one that cannot be answered does not take the others with it."""
    experiment = Experiment(Maker("cuda", torch.bfloat16), ("triton", "cuda"))
    for ask in (layout, split_size, int4_crossover, sampling_cost):
        question = str(ask.__doc__).splitlines()[0]
        tell(question)
        torch.cuda.empty_cache()
        try:
            with torch.inference_mode():
                report.answers.append(ask(experiment))
        except Exception as error:
            report.answers.append(Answer(question, ["error"], [[str(error)]], "No answer."))


def layout(
    experiment: Experiment, model: Model = LLAMA, rows: Sequence[tuple[int, int]] = ((1, 4096),) * 64
) -> Answer:
    """Blocks of all layers together (BLHNC), or each layer in one piece (LBHNC)?"""
    layers = _layers_that_fit(experiment.maker, model, rows)
    calls: dict[str, Call] = {}
    for name in ("BLHNC", "LBHNC"):
        workload = attention(experiment.maker, model, list(rows), layers_first=name == "LBHNC")
        of_layout = experiment.calls(workload.make(layers))
        calls |= {f"{backend} {name}": call for backend, call in of_layout.items()}
    times = experiment.times(calls)
    lines, told = [], []
    for backend in dict.fromkeys(name.split()[0] for name in times):
        together, apart = times[f"{backend} BLHNC"], times[f"{backend} LBHNC"]
        lines.append([backend, _us(together), _us(apart), f"{together / apart:.3f}"])
        told.append(f"{backend}: BLHNC takes {together / apart:.3f} times as long as LBHNC")
    question = "Blocks of all layers together (BLHNC), or each layer in one piece (LBHNC)?"
    headings = ["implementation", "BLHNC", "LBHNC", "BLHNC / LBHNC"]
    return Answer(f"{question} {workload.name}, {layers} layers", headings, lines, "; ".join(told) + ".")


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
    """Best number of tokens per split of split-KV decoding."""
    lines, best = [], []
    for rows in batches:
        workload = attention(experiment.maker, model, list(rows))
        cases = workload.make(2)
        for backend in experiment.calls(cases):
            times = experiment.times({str(split): _with_split(backend, cases, split) for split in SPLITS})
            lines.append([workload.name, backend, *map(_us, times.values())])
            best.append(f"{workload.name}, {backend}: {min(times, key=times.__getitem__)}")
    question = "How many tokens should one split of split-KV decoding have?"
    headings = ["batch", "implementation", *map(str, SPLITS)]
    return Answer(question, headings, lines, "Fastest: " + "; ".join(best) + ".")


def _with_split(backend: str, cases: Sequence[Case], split: int) -> Call:
    """The decode kernel with another split size than its own."""
    if backend == "cuda":
        from kernels.cuda.attention import decode_split

        return on_copies(decode_split, cases, split=split)
    from kernels.triton_ops import split_kv_decode
    from kernels.triton_ops.attention import paged_attention

    def call(number: int) -> object:
        with patch.object(split_kv_decode, "SPLIT", split):
            return on_copies(paged_attention, cases)(number)

    return call


def int4_crossover(experiment: Experiment, rows: Sequence[int] = ROWS) -> Answer:
    """From how many rows on does a 4-bit product pay no more?"""
    lines, gemv_until, pays_until = [], 0, 0
    for number in rows:
        cases = int4(experiment.maker, number).make(4)
        dense = yardsticks(cases)[0]["dense weights"]
        times = experiment.times({**experiment.calls(cases), "dense": dense})
        best = min((name for name in times if name != "dense"), key=times.__getitem__)
        gemv_until = number if best == "cuda" else gemv_until
        pays_until = number if times[best] < times["dense"] else pays_until
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
        times[name] = experiment.times(experiment.calls(sampling(experiment.maker, name, **options).make(3)))
    greedy, noise, top_p = (times[name] for name in ("greedy", "noise", "noise, top-p 0.9"))
    lines = [
        [
            name,
            *(
                f"{_us(seconds)} = {seconds / greedy[backend]:.2f} x"
                for backend, seconds in by_backend.items()
            ),
        ]
        for name, by_backend in times.items()
    ]
    told = [
        f"{backend}: noise costs {noise[backend] / greedy[backend] - 1:+.0%} on top of greedy, "
        f"top-p as much as {top_p[backend] / noise[backend]:.1f} passes"
        for backend in greedy
    ]
    question = "What do noise and filters cost beside one look at the logits?"
    return Answer(question, ["rows that want", *greedy], lines, "; ".join(told) + ".")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"
