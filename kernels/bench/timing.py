"""Medians of candidates that are measured in turn, so that whatever slows the machine slows all of them.

    round 1: A B C   round 2: A B C   ...        a sample = several calls, so that the clock does not matter

Each call works on other memory than the one before it (the caller hands out copies), so that data comes from
where it comes from in a model of many layers and not from a cache. On a GPU the calls of a sample are
recorded as a CUDA graph: as in decoding, Python's time to launch a kernel is not a part of the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

Call = Callable[[int], object]
"""One call; the number says which copy of the data it is to use."""

MIN_ROUNDS = 5
CPU_SAMPLE_S = 1e-3
GPU_SAMPLE_S = 4e-4
MAX_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call."""

    median: float
    p10: float
    p90: float
    samples: int
    graph: bool = False
    """Whether a CUDA graph was timed; False on a GPU: the kernel cannot be recorded, launches are included."""


def interleaved(
    calls: Mapping[str, Call], device: str, *, seconds: float = 0.3, graphs: bool = True
) -> dict[str, Timing]:
    """Measure all candidates in turn for about `seconds` each, at least `MIN_ROUNDS` samples.

    graphs: False for calls that use pageable host memory, which no CUDA graph can hold.
    """
    samplers = {
        name: _GPUSampler(call, graphs) if device == "cuda" else _CPUSampler(call)
        for name, call in calls.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin, rounds = perf_counter(), 0
    while rounds < MIN_ROUNDS or perf_counter() - begin < seconds * len(calls):
        for name, sampler in samplers.items():
            samples[name].append(sampler.sample())
        rounds += 1
    return {name: _timing(sorted(samples[name]), samplers[name].is_graph) for name in calls}


def _timing(ordered: list[float], is_graph: bool) -> Timing:
    last = len(ordered) - 1
    return Timing(median(ordered), ordered[last // 10], ordered[last - last // 10], len(ordered), is_graph)


class _CPUSampler:
    """Several calls between two looks at the clock."""

    is_graph = False

    def __init__(self, call: Call) -> None:
        self._call = call
        self._number = 0
        self._calls = 1
        self.sample()  # imports, allocations
        self._calls = max(1, min(MAX_CALLS, round(CPU_SAMPLE_S / max(self.sample(), 1e-9))))

    def sample(self) -> float:
        numbers = range(self._number, self._number + self._calls)
        start = perf_counter()
        for number in numbers:
            self._call(number)
        elapsed = perf_counter() - start
        self._number += self._calls
        return elapsed / self._calls


class _GPUSampler:
    """A CUDA graph of several calls between two events."""

    def __init__(self, call: Call, graphs: bool) -> None:
        self._call = call
        self._calls = 1
        self._graph: torch.cuda.CUDAGraph | None = None
        for number in range(3):  # compiles, tunes, allocates
            self._run_calls(number)
        estimate = min(self.sample() for _ in range(3))
        self._calls = max(1, min(64, round(GPU_SAMPLE_S / max(estimate, 1e-9))))
        self._graph = self._record() if graphs else None
        self.sample()

    @property
    def is_graph(self) -> bool:
        return self._graph is not None

    def _run_calls(self, first: int = 0) -> None:
        for number in range(first, first + self._calls):
            self._call(number)

    def _record(self) -> torch.cuda.CUDAGraph | None:
        """None for a call that waits for values on the way, as the references do: that cannot be recorded."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            self._call(0)
        except RuntimeError:
            return None
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._run_calls()
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return graph

    def sample(self) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._graph.replay() if self._graph is not None else self._run_calls()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / self._calls
