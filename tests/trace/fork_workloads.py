"""Crowded random workloads as traces: adapters, drafts, tiers, windows, priorities, errors, aborts, interrupts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.trace.header import class_path
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.core.shadow_kv import Simulation
from tests.core.workloads import Workload

SAYS_NOTHING = ("ts", "dur")
"""Fields of a step that are about time."""


class TracedScheduler(Scheduler):
    """Writes a trace as the engine does."""

    path: Path

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        header = {"model": "digests", "scheduler_cls": class_path(Scheduler)}
        self.tracer = TraceWriter(self.path, header, self)

    def add(self, request: Request) -> None:
        super().add(request)
        self.tracer.add(request)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        outputs = super().abort(request_ids)
        self.tracer.abort([output.request_id for output in outputs])
        return outputs

    def update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        outputs = super().update(out, result)
        self.tracer.step(out, result, outputs, 0.0)
        return outputs


class TracedSimulation(Simulation):
    def _interrupt(self, out: SchedulerOutput) -> None:
        super()._interrupt(out)
        self.scheduler.tracer.error(KeyboardInterrupt())


def crowded_run(path: Path, seed: int) -> TraceReader:
    """Record one. Grammars are left out: their compiling is not repeatable. So are interrupts among drafts: the
    rows of a step that never ended are not in the file, nor how many drafts each of them had."""
    workload = Workload.random(seed)
    if workload.draft_length:
        workload.interrupts.clear()
    asks = [replace(ask, compile_steps=None, compile_fails=False) for ask in workload.asks]
    return traced_run(path, replace(workload, asks=asks))


def traced_run(path: Path, workload: Workload) -> TraceReader:
    cls = type("TracedHere", (TracedScheduler,), {"path": path})
    simulation = TracedSimulation(workload, cls)
    simulation.run()
    simulation.scheduler.tracer.close()
    return TraceReader(path)


def decisions(reader: TraceReader, step: int) -> dict[str, Any]:
    """All that a step's record says but the time: rows, blocks, hashes, reasons, counters."""
    return {name: value for name, value in reader.record(step).items() if name not in SAYS_NOTHING}


def first_difference(a: TraceReader, b: TraceReader) -> str:
    """Describe the first difference between two traces; empty if there is none."""
    for step in range(max(a.num_steps, b.num_steps)):
        if step >= min(a.num_steps, b.num_steps):
            return f"{a.num_steps} and {b.num_steps} steps"
        one, other = decisions(a, step), decisions(b, step)
        for name in {**one, **other}:
            if one.get(name) != other.get(name):
                return f"step {step}: {name} {one.get(name)} and {other.get(name)}"
    lives = [[(r.request_id, r.ended, r.finish_reason, list(r.tokens)) for r in x.requests] for x in (a, b)]
    return "" if lives[0] == lives[1] else f"requests {lives[0]} and {lives[1]}"
