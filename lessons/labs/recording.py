"""Record the scheduler behind a learner's part as a trace, so that the debugger can show each of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.sim.engine import SimEngine
from engine.trace.divergence import decision_at
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from lessons.course import workspace

STEP_S = 0.001
"""Seconds of a step without a clock."""


@contextmanager
def recorded(
    path: Path | None, scheduler: Scheduler, clock: Callable[[], float] | None = None
) -> Iterator[None]:
    """Record all steps of a fresh scheduler within the block. path: None records nothing.

    The trace ends with the last step that was updated, also if the scheduler raises. Raises TraceError if the file
    cannot be written.
    """
    if path is None:
        yield
        return
    step, began = 0, 0.0
    clock = clock or (lambda: step * STEP_S)
    writer = TraceWriter(path, {"model": "none: a lab", "clock": "virtual"}, scheduler, clock=clock)
    add, schedule, update, abort = scheduler.add, scheduler.schedule, scheduler.update, scheduler.abort

    def added(request: Request) -> None:
        add(request)
        writer.add(request)

    def scheduled() -> SchedulerOutput:
        nonlocal began
        began = clock()
        return schedule()

    def updated(out: SchedulerOutput, result: ModelRunnerOutput) -> list[Any]:
        nonlocal step
        step += 1
        outputs = update(out, result)
        writer.step(out, result, outputs, clock() - began)
        return outputs

    def aborted(request_ids: Iterable[str]) -> list[Any]:
        names = list(request_ids)
        ended = abort(names)
        writer.abort(names)
        return ended

    for name, method in {"add": added, "schedule": scheduled, "update": updated, "abort": aborted}.items():
        setattr(scheduler, name, method)
    try:
        yield
    finally:
        with suppress(Exception):  # the closing checks may raise on a scheduler that broke a rule
            writer.close()


@contextmanager
def recorded_engine(path: Path | None, engine: SimEngine) -> Iterator[None]:
    """Record all steps of a fresh simulated engine within the block, in virtual time. path: None records nothing."""
    if path is not None:
        engine.fast_forward = False
    with recorded(path, engine.scheduler, engine.clock):
        yield


def trace_path(lab: str, whose: str) -> Path:
    """Return the path of a lab's trace. whose: "yours" or "ours"."""
    return workspace.folder() / "labs" / "traces" / f"{lab}-{whose}.itrace"


def record_both(
    lab: str, yours: Callable[[Path], object], ours: Callable[[Path], object]
) -> tuple[Path, Path, int] | None:
    """Record both runs of a workload. Return the traces and the first step that differs.

    yours, ours: serve the workload and record it at a path. The learner's run may raise. Returns None if the traces
    cannot be written.
    """
    paths = trace_path(lab, "yours"), trace_path(lab, "ours")
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        ours(paths[1])
        paths[0].unlink(missing_ok=True)
        with suppress(Exception):
            yours(paths[0])
        mine, right = (TraceReader(path) for path in paths)
        return *paths, first_step(mine, right)
    except (TraceError, OSError):
        return None


def first_step(one: TraceReader, other: TraceReader) -> int:
    """Return the first step that two runs decide differently, or the last one that both have."""
    last = min(one.num_steps, other.num_steps)
    return next(
        (step for step in range(last) if decision_at(one, step) != decision_at(other, step)), max(0, last - 1)
    )
