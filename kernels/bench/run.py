"""Measure operations: every implementation that runs here natively, and the yardsticks, in turn on the same data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch

from kernels import registry
from kernels.bench.limits import Limits, Machine, cache_bytes, describe, measure_limits
from kernels.bench.roofline import Limit, limit, work
from kernels.bench.timing import Call, interleaved
from kernels.bench.workloads import Maker, Workload, of_recipes
from kernels.bench.yardsticks import one_line, yardsticks
from kernels.check.case import Case
from kernels.operation import Work
from kernels.operations import OPERATIONS

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
        """Share of the limit that is reached, 0 to 1."""
        return self.limit(measurement).seconds / measurement.seconds

    def speedup(self, measurement: Measurement) -> tuple[float, str] | None:
        """(how many times faster than the fastest yardstick of the workload, its name)"""
        where = (measurement.op, measurement.workload)
        rivals = [
            rival for rival in self.measurements if not rival.ours and (rival.op, rival.workload) == where
        ]
        if not rivals or not measurement.ours:
            return None
        best = min(rivals, key=lambda rival: rival.seconds)
        return best.seconds / measurement.seconds, best.candidate

    def best_of_each(self) -> list[Measurement]:
        """Return our fastest implementation on every workload."""
        best: dict[tuple[str, str], Measurement] = {}
        for measurement in self.measurements:
            if measurement.ours:
                known = best.get((measurement.op, measurement.workload), measurement)
                best[measurement.op, measurement.workload] = min(
                    known, measurement, key=lambda candidate: candidate.seconds
                )
        return list(best.values())


def new_report(device: str, tell: Tell) -> BenchReport:
    """A report with this machine's limits and nothing else."""
    return BenchReport(device, describe(device), measure_limits(device, tell))


def measure_limits_again(report: BenchReport, tell: Tell) -> None:
    """The better of two measurements, one at the beginning and one at the end: other programs disturb each."""
    report.limits = report.limits.or_better(measure_limits(report.device, tell))


def workloads(op: str, device: str) -> Iterator[Workload]:
    """Yield the workloads of an operation on a kind of device."""
    maker = Maker(device, torch.bfloat16 if device == "cuda" else torch.float32)
    for recipe in OPERATIONS[op].part("workloads")(maker):
        yield recipe if isinstance(recipe, Workload) else of_recipes(op, *recipe)


def measure_ops(
    report: BenchReport, ops: Sequence[str], backends: Sequence[str], tell: Tell, *, seconds: float = 0.3
) -> None:
    """Add every workload of these operations to the report."""
    for op in ops:
        for workload in workloads(op, report.device):
            tell(f"{op}: {workload.name}")
            try:
                measure(report, workload, backends, seconds=seconds)
            except Exception as error:  # out of memory, say: the rest of a long run is still worth having
                report.omitted.append(Omitted(op, workload.name, "all", one_line(error)))
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
    calls = {}
    for backend in backends:
        if (workload.op, backend) not in registry.BY_NAME:
            continue
        try:
            if backend in workload.without and not registry.unavailable(backend):
                raise registry.UnsupportedInput("would need too much memory or time at this size")
            calls[backend] = implementation_on(cases, backend)
        except registry.UnsupportedInput as error:
            report.omitted.append(Omitted(workload.op, workload.name, backend, str(error)))
        except Exception as error:
            report.omitted.append(Omitted(workload.op, workload.name, backend, one_line(error)))
    if not calls:
        return
    others, failed = yardsticks(cases)
    report.omitted += [Omitted(workload.op, workload.name, name, why) for name, why in failed.items()]
    graphs = workload.op != "copy_blocks"  # its pairs are on the CPU
    for name, timing in interleaved(calls | others, report.device, seconds=seconds, graphs=graphs).items():
        spread = (timing.median, timing.p10, timing.p90)
        measurement = Measurement(
            workload.op, workload.name, name, name in calls, *spread, timing.samples, timing.graph, least
        )
        report.measurements.append(measurement)


def _copies(least: Work, device: str) -> int:
    """So many that going through all of them pushes the first out of the cache."""
    needed = 1 + math.ceil(2 * cache_bytes(device) / max(least.bytes, 1))
    return max(1, min(needed, MAX_COPIES, MAX_BYTES // max(least.bytes, 1)))


def implementation_on(cases: Sequence[Case], backend: str) -> Call:
    """The implementation, tried once. Raises UnsupportedInput if it cannot run here or does not take the case."""
    implementation = registry.get(cases[0].op, backend)
    if reason := registry.unavailable(backend):
        raise registry.UnsupportedInput(reason)
    function = implementation.load()
    pack = getattr(import_module(function.__module__), "packed", None)
    if pack is not None:
        cases = [replace(case, args=pack(*case.args)) for case in cases]
    if reason := implementation.unsupported(*cases[0].args, **cases[0].kwargs):
        raise registry.UnsupportedInput(reason)
    call = on_copies(function, cases)
    call(0)
    return call


def on_copies(function: Callable[..., Any], cases: Sequence[Case], **more: Any) -> Call:
    """Return a call of the function on the copy that it is told."""

    def call(number: int) -> object:
        case = cases[number % len(cases)]
        return function(*case.args, **case.kwargs, **more)

    return call
