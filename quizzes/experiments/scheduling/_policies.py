"""Policies that vLLM does not ship, as sort keys on the real scheduler.

    policy      key of a request: smaller runs first
    sjf         predicted tokens
    aging       arrival + weight x predicted tokens     a job that has waited long enough beats any later one
    fair        finish tag of its tenant                tag = max(tenant's last tag, virtual time) + tokens

Keys are computed on arrival. For aging that suffices: a waiting request gains on all later arrivals at the same
pace, so the order between two requests never changes. Fair share: weighted fair queueing with unit weights (Demers et
al. 1989), for LLM serving Sheng et al. 2024 (2401.00588), section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from engine.core.queues import SortKey
from engine.core.request import Request
from engine.core.scheduler import Scheduler

Predict = Callable[[Request], float]
"""Predicted tokens of a request, on arrival."""


def tenant_of(request: Request) -> str:
    """Return the tenant of an id such as tenant/number."""
    return request.request_id.split("/")[0]


def sjf(predict: Predict) -> Callable[..., Scheduler]:
    """Shortest job first."""

    def make(*args: Any, **settings: Any) -> Scheduler:
        scheduler: Any = Scheduler(*args, **settings)
        scheduler.sort_key = lambda request, order: (0, predict(request), order)
        return cast(Scheduler, scheduler)

    return make


def aging(predict: Predict, weight: float) -> Callable[..., Scheduler]:
    """Shortest job first with a limit: a token of length counts as `weight` steps of waiting."""

    def make(*args: Any, **settings: Any) -> Scheduler:
        scheduler: Any = Scheduler(*args, **settings)
        scheduler.sort_key = lambda request, order: (
            0,
            request.arrival_time + weight * predict(request),
            order,
        )
        return cast(Scheduler, scheduler)

    return make


def fair(predict: Predict) -> Callable[..., Scheduler]:
    """Fair share: tenants take turns by tokens, however many requests each of them sends."""

    def make(*args: Any, **settings: Any) -> Scheduler:
        scheduler: Any = Scheduler(*args, **settings)
        last: dict[str, float] = {}
        starts: dict[str, float] = {}
        """Starts of unfinished requests; the minimum is the virtual time."""

        def key(request: Request, order: int) -> SortKey:
            for request_id in [name for name in starts if name not in scheduler.requests]:
                del starts[request_id]
            tenant = tenant_of(request)
            start = max(last.get(tenant, 0.0), min(starts.values(), default=0.0))
            last[tenant] = start + predict(request)
            starts[request.request_id] = start
            return (0, last[tenant], order)

        scheduler.sort_key = key
        return cast(Scheduler, scheduler)

    return make


class BypassScheduler(Scheduler):
    """First fit instead of first come: requests that fit overtake a head that lacks blocks."""

    def _schedule_waiting(self, plan: Any) -> None:
        passed: list[Request] = []
        while self.waiting and self._why_closed(plan) is None:
            request = self.waiting.pop()
            refusal = self._admit(request, plan)
            if refusal is not None:
                plan.not_scheduled.append(refusal)
                passed.append(request)
        for request in passed:
            self.waiting.push(request)
