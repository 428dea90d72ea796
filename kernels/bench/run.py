"""Measure operations: every implementation that runs here natively, and the yardsticks, in turn on the same data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from kernels import registry
from kernels.bench.limits import Limits, cache_bytes, measure_limits
from kernels.bench.machine import Machine, describe
from kernels.bench.roofline import Limit, Work, limit, work
from kernels.bench.timing import Call, Timing, interleaved
from kernels.bench.workloads import Workload, workloads
from kernels.bench.yardsticks import yardsticks
from kernels.check.case import Case

Tell = Callable[[str], None]
MAX_COPIES = 32
MAX_BYTES = 2**30
"""Bytes of all copies of a small workload; a single copy may need more."""
NATIVE = {"cpu": ("reference", "cpu"), "cuda": ("reference", "triton", "cuda")}
"""Backends worth measuring, by device; the interpreter and the host shim are not."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One candidate on one workload."""

    op: str
    workload: str
    candidate: str
    """A backend, or a yardstick."""
    ours: bool
    seconds: float
    p10: float
    p90: float
    samples: int
    graph: bool
    """Timed as a CUDA graph, without launches."""
    work: Work


@dataclass(frozen=True, slots=True)
class Omitted:
    """A candidate that was not measured, and why."""

    op: str
    workload: str
    candidate: str
    reason: str


@dataclass(slots=True)
class BenchReport:
    """Everything measured in one run."""

    device: str
    machine: Machine
    limits: Limits
    measurements: list[Measurement] = field(default_factory=list)
    omitted: list[Omitted] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    """Answers to the questions of questions.py."""
    interrupted: bool = False
    seconds: float = 0.0

    def limit(self, measurement: Measurement) -> Limit:
        """The shortest time that this machine allows."""
        return limit(measurement.work, self.limits)

    def share(self, measurement: Measurement) -> float:
        """How much of the limit is reached, 0 to 1."""
        return self.limit(measurement).seconds / measurement.seconds

    def speedup(self, measurement: Measurement) -> tuple[float, str] | None:
        """(how many times faster than the fastest yardstick of the workload, its name)"""
        rivals = [
            each
            for each in self.measurements
            if not each.ours and (each.op, each.workload) == (measurement.op, measurement.workload)
        ]
        if not rivals or not measurement.ours:
            return None
        best = min(rivals, key=lambda each: each.seconds)
        return best.seconds / measurement.seconds, best.candidate


def new_report(device: str, tell: Tell) -> BenchReport:
    """A report with this machine's limits and nothing else."""
    return BenchReport(device, describe(device), measure_limits(device, tell))


def measure_limits_again(report: BenchReport, tell: Tell) -> None:
    """The better of two measurements, one at the beginning and one at the end: other programs disturb each."""
    report.limits = report.limits.or_better(measure_limits(report.device, tell))


def measure_ops(
    report: BenchReport, ops: Sequence[str], backends: Sequence[str], tell: Tell, *, seconds: float = 0.3
) -> None:
    """Add every workload of these operations to the report."""
    for op in ops:
        for each in workloads(op, report.device):
            tell(f"{op}: {each.name}")
            try:
                measure(report, each, backends, seconds=seconds)
            except Exception as error:  # out of memory, say: the rest of a long run is still worth having
                report.omitted.append(Omitted(op, each.name, "all", _one_line(error)))
            if report.device == "cuda":
                torch.cuda.empty_cache()


@torch.inference_mode()
def measure(
    report: BenchReport, workload: Workload, backends: Sequence[str], *, seconds: float = 0.3
) -> None:
    """Add one workload to the report."""
    (first,) = workload.make(1)
    least = work(first.op, *first.args, **first.kwargs)
    cases = workload.make(_copies(least, report.device))
    calls, ours = {}, set()
    for backend, call in _implementations(report, workload, cases, backends):
        calls[backend] = call
        ours.add(backend)
    if not ours:
        return
    others, failed = yardsticks(cases)
    report.omitted += [Omitted(workload.op, workload.name, name, why) for name, why in failed.items()]
    graphs = workload.op != "copy_blocks"  # its pairs are on the CPU
    for name, timing in interleaved(calls | others, report.device, seconds=seconds, graphs=graphs).items():
        report.measurements.append(_measurement(workload, name, name in ours, timing, least))


def _copies(least: Work, device: str) -> int:
    """So many that going through all of them pushes the first out of the cache."""
    needed = 1 + math.ceil(2 * cache_bytes(device) / max(least.bytes, 1))
    return max(1, min(needed, MAX_COPIES, MAX_BYTES // max(least.bytes, 1)))


def _implementations(
    report: BenchReport, workload: Workload, cases: list[Case], backends: Sequence[str]
) -> Iterator[tuple[str, Call]]:
    for backend in backends:
        if all(each.backend != backend for each in registry.implementations(workload.op)):
            continue
        reason = registry.unavailable(backend)
        if reason is None and backend in workload.without:
            reason = "would need too much memory or time at this size"
        if reason is None:
            try:
                call = _call(workload.op, backend, cases)
            except registry.UnsupportedInput as error:
                reason = str(error)
            except Exception as error:
                reason = _one_line(error)
        if reason is None:
            yield backend, call
        else:
            report.omitted.append(Omitted(workload.op, workload.name, backend, reason))


def _call(op: str, backend: str, cases: list[Case]) -> Call:
    """The implementation, tried once. Raises if it does not take the case."""
    implementation = registry.get(op, backend)
    function = implementation.load()
    arguments = [(case.args, case.kwargs) for case in cases]
    pack = getattr(import_module(function.__module__), "pack_weight", None)
    if pack is not None:  # as the engine does when it loads a model
        arguments = [((x, pack(weight), *rest), kwargs) for (x, weight, *rest), kwargs in arguments]
    if reason := implementation.unsupported(*arguments[0][0], **arguments[0][1]):
        raise registry.UnsupportedInput(reason)
    function(*arguments[0][0], **arguments[0][1])

    def call(number: int) -> object:
        args, kwargs = arguments[number % len(arguments)]
        return function(*args, **kwargs)

    return call


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _measurement(workload: Workload, name: str, ours: bool, timing: Timing, least: Work) -> Measurement:
    return Measurement(
        op=workload.op,
        workload=workload.name,
        candidate=name,
        ours=ours,
        seconds=timing.median,
        p10=timing.p10,
        p90=timing.p90,
        samples=timing.samples,
        graph=timing.graph,
        work=least,
    )
