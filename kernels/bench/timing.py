"""Medians of candidates that are measured in turn, so that whatever slows the machine slows all of them.

    round 1: A B C   round 2: A B C   ...        a sample = several calls, so that the clock does not matter

Each call works on other memory than the one before it (the caller hands out copies), so that data comes from
where it comes from in a model of many layers and not from a cache. On a CPU a sample follows as many calls that are
not timed: the first ones meet threads of the candidate before, and caches without their own code. On a GPU the calls of
a sample are recorded as a CUDA graph: as in decoding, Python's time to launch a kernel is not a part of the kernel's.
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
SAMPLE_S = {"cpu": 1e-3, "cuda": 4e-4}
MAX_CALLS = {"cpu": 1000, "cuda": 64}


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call."""

    median: float
    p10: float
    p90: float
    least: float
    samples: int
    graph: bool
    """Whether a CUDA graph was timed; False on a GPU: the kernel cannot be recorded, launches are included."""


def interleaved(
    calls: Mapping[str, Call], device: str, *, seconds: float = 0.3, graphs: bool = True
) -> dict[str, Timing]:
    """Measure all candidates in turn for about `seconds` each, at least `MIN_ROUNDS` samples.

    graphs: False for calls that use pageable host memory, which no CUDA graph can hold.
    """
    samplers = {name: _Sampler(call, device, graphs) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin, rounds = perf_counter(), 0
    while rounds < MIN_ROUNDS or perf_counter() - begin < seconds * len(calls):
        for name, sampler in samplers.items():
            samples[name].append(sampler.sample())
        rounds += 1
    return {name: _timing(sorted(samples[name]), samplers[name].graph is not None) for name in calls}


def _timing(ordered: list[float], is_graph: bool) -> Timing:
    last = len(ordered) - 1
    p10, p90 = ordered[last // 10], ordered[last - last // 10]
    return Timing(median(ordered), p10, p90, ordered[0], len(ordered), is_graph)


class _Sampler:
    """Several calls between two looks at the clock; on a GPU between two events, as a CUDA graph if possible."""

    def __init__(self, call: Call, device: str, graphs: bool) -> None:
        self._call = call
        self._device = device
        self._number = 0
        self._calls = 1
        self.graph: torch.cuda.CUDAGraph | None = None
        tries = 3 if device == "cuda" else 1
        for _ in range(tries):  # imports, compiles, tunes, allocates
            self.sample()
        estimate = min(self.sample() for _ in range(tries))
        self._calls = max(1, min(MAX_CALLS[device], round(SAMPLE_S[device] / max(estimate, 1e-9))))
        if device == "cuda":
            self.graph = self._record() if graphs else None
            self.sample()

    def sample(self) -> float:
        """Return the mean seconds of the calls of one sample."""
        if self._device == "cpu":
            if self._calls > 1:
                self._run()
            began = perf_counter()
            self._run()
            return (perf_counter() - began) / self._calls
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.graph.replay() if self.graph is not None else self._run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / self._calls

    def _run(self) -> None:
        for number in range(self._number, self._number + self._calls):
            self._call(number)
        self._number += self._calls

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
                self._run()
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return graph
