"""Resources that a request may need before it starts, besides budget, a seat and blocks.

    add            why_not                 acquire             release        finish
    queued ------> may it start? --------> it starts --------> it stops ----> it ends
                   ^                                           |
                   +--------------- preempted -----------------+

The scheduler asks every resource in turn and knows none of them by name. `engine/core/resources.py` lists those that
ship: grammars, adapter slots, images, KV transfers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from engine.core.blocks import Block
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, NotScheduled, SchedulerOutput
from engine.core.stats import StepStats


class AdmissionResource:
    """A resource that limits admission. Override the hooks it needs; the others do nothing."""

    @classmethod
    def of(cls, scheduler: Any) -> Self | None:
        """Return the scheduler's resource of this class; None if it has none."""
        return next(
            (resource for resource in getattr(scheduler, "resources", ()) if isinstance(resource, cls)), None
        )

    # -- one request

    def add(self, request: Request) -> None:
        """A request was queued."""

    def why_not(self, request: Request, stats: StepStats) -> NotScheduled | None:
        """Return why a waiting request cannot start now, or None. Asked in queue order.

        What the request lacks must come by itself: requests behind it may overtake it meanwhile.
        """
        return None

    def acquire(self, request: Request) -> None:
        """A request starts or resumes."""

    def release(self, request: Request) -> None:
        """A running request was preempted or has ended."""

    def finish(self, request: Request) -> None:
        """A request has ended. Its status is final, and it still owns its blocks."""

    # -- one step

    def begin_step(self) -> None:
        """Planning begins."""

    def close_step(self, out: SchedulerOutput, stats: StepStats) -> None:
        """Write into the finished plan what the worker has to do."""

    def end_step(self, result: ModelRunnerOutput, stats: StepStats) -> Iterable[tuple[Request, str]]:
        """Take in the worker's answer. Returns the requests that cannot go on, each with its error."""
        return ()

    # -- state

    @property
    def num_unfinished(self) -> int:
        """Work that needs further steps even after all requests have ended."""
        return 0

    def held_blocks(self) -> Iterable[Block]:
        """Device blocks that the resource itself owns, each as often as it owns it."""
        return ()

    def check_integrity(self, running: list[Request], waiting: list[Request]) -> list[str]:
        """Return what is inconsistent, one sentence each."""
        return []
