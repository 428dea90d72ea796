"""The events from which statistics of a running engine are made: requests that begin, steps, outputs.

Source: StatLoggerBase in vLLM v1/metrics/loggers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.core.sched_output import EngineCoreOutput
from engine.core.stats import StepStats
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.outputs import RequestOutput


class StatLogger(Protocol):
    """One of `LLMEngine.stat_loggers`. The engine thread calls it, between two steps; one that raises is removed."""

    def add(self, submitted: SubmittedRequest) -> None:
        """A request was queued, or more of its `children` were."""

    def step(
        self,
        stats: StepStats | None,
        when: float,
        core_outputs: Sequence[EngineCoreOutput],
        outputs: Sequence[RequestOutput],
    ) -> None:
        """A step has ended, or an abort.

        stats: figures of the step; None without one. when: its end, in seconds of time.monotonic.
        core_outputs: new tokens per completion. outputs: what callers get.
        """
