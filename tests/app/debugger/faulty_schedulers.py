"""Schedulers with a bug each, as a user may bring them along."""

from __future__ import annotations

from typing import Any

from engine.core.request import Request, RequestStatus
from engine.core.sched_output import SchedulerOutput
from engine.core.scheduler import Scheduler


class Leaks(Scheduler):
    """Allocates a block in step 12 that is never released."""

    def schedule(self) -> SchedulerOutput:
        out = super().schedule()
        if out.step == 12:
            self.kv.pool.take(1)
        return out


class Raises(Scheduler):
    """Cannot take the end of a request."""

    def _finish(self, request: Request, status: RequestStatus) -> Any:
        raise KeyError("the table of finished requests")
