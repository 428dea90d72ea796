"""The seam for whatever watches an engine core: traces, KV events, the debug port, integrity checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput


class StepObserver:
    """Base class of observers: every method does nothing, a subclass overrides what it needs.

    All methods run in the thread that steps the engine. Append an observer to `EngineCore.observers` before the first
    step.
    """

    def before_step(self) -> list[EngineCoreOutput] | None:
        """Return outputs to hold the engine: it returns them instead of running a step. None lets the step run."""
        return None

    def after_step(self) -> None:
        """A step has ended, also one that raised."""

    def add(self, request: Request) -> None:
        """The scheduler has queued a request."""

    def abort(self, request_ids: Iterable[str]) -> None:
        """These unfinished requests were aborted."""

    def step(
        self,
        out: SchedulerOutput,
        result: ModelRunnerOutput,
        outputs: list[EngineCoreOutput],
        duration_s: float,
    ) -> None:
        """The scheduler has applied the result of a step, which began `duration_s` seconds ago."""

    def error(self, error: BaseException) -> None:
        """A step raised. The engine is dead, or after Ctrl-C without requests."""

    def reset(self) -> None:
        """The prefix cache was emptied."""

    def close(self) -> None:
        """The engine shuts down."""


class IntegrityCheck(StepObserver):
    """Check the cache's invariants after every step (`debug_checks`)."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def step(self, *_step: object) -> None:
        self._scheduler.check_integrity()
