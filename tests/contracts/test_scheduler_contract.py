"""Contract of any scheduler, whatever its policy.

A scheduler is made as `Class(SchedulerConfig, CacheConfig)`, has add, schedule, update and abort, and
shows `requests` (unfinished, by id) and `running`. It chooses order, preemption and reasons itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.kv_manager import PrefixHit
from engine.core.request import Request
from engine.core.sched_output import SchedulerOutput
from engine.core.scheduler import Scheduler, StepPlan
from tests.core.shadow_kv import explain, failure
from tests.core.workloads import Workload

WORKLOADS = 200


def verdict(scheduler_class: Any, count: int = WORKLOADS) -> str | None:
    """The first failure as a text, or None."""
    for seed in range(count):
        workload = Workload.random(seed)
        if failure(workload, scheduler_class, strict=False) is not None:
            return f"workload {seed}\n{explain(workload, scheduler_class, strict=False)}"
    return None


def test_scheduler_gives_what_each_request_gives_alone_and_leaves_nothing(scheduler_class: Any) -> None:
    """Reads only written KV of its own prefix, stays in budget, finishes everything, frees everything."""
    problem = verdict(scheduler_class)
    assert problem is None, problem


def test_scheduler_ends_an_abort_at_once(scheduler_class: Any) -> None:
    workload = Workload.random(0)
    scheduler = scheduler_class(workload.scheduler, workload.cache)
    request = workload.asks[0].make()
    scheduler.add(request)
    scheduler.schedule()
    outputs = scheduler.abort([request.request_id])
    assert [output.finish_reason for output in outputs] == ["abort"]
    assert request.request_id not in scheduler.requests
    assert scheduler.abort([request.request_id]) == []


def test_scheduler_refuses_a_duplicate_id(scheduler_class: Any) -> None:
    workload = Workload.random(0)
    scheduler = scheduler_class(workload.scheduler, workload.cache)
    scheduler.add(workload.asks[0].make())
    with pytest.raises(ValueError):
        scheduler.add(workload.asks[0].make())


# -- the judge accepts other policies and refuses broken ones


class ShortestPromptFirst(Scheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sort_key = lambda request, order: (request.num_prompt_tokens, 0.0, order)


class StaticBatching(Scheduler):
    """Admits a batch only when the last one has finished."""

    def _schedule_waiting(self, plan: StepPlan) -> None:
        if not plan.rows:
            super()._schedule_waiting(plan)


class Leaking(Scheduler):
    def abort(self, request_ids: Any) -> Any:
        held = [self.requests[i].blocks[:1] for i in request_ids if i in self.requests]
        for blocks in held:
            for block in blocks:
                self.kv.pool.touch(block)
        return super().abort(request_ids)


class Starving(Scheduler):
    def _schedule_waiting(self, plan: StepPlan) -> None:
        if len(self.requests) < 5:
            super()._schedule_waiting(plan)


class Greedy(Scheduler):
    def schedule(self) -> SchedulerOutput:
        out = super().schedule()
        for row in out.scheduled:
            row.num_tokens += 1
        return out


class Overwriting(Scheduler):
    """Computes a prefix hit again, in blocks that others read."""

    def _start(self, request: Request, num_hit_tokens: int, hit: PrefixHit) -> None:
        super()._start(request, num_hit_tokens, hit)
        request.num_computed_tokens = 0


@pytest.mark.parametrize("policy", [ShortestPromptFirst, StaticBatching])
def test_the_judge_accepts_another_policy(policy: type[Scheduler]) -> None:
    assert verdict(policy, 60) is None


@pytest.mark.parametrize("broken", [Leaking, Starving, Greedy, Overwriting])
def test_the_judge_refuses_a_broken_scheduler_and_shows_a_workload(broken: type[Scheduler]) -> None:
    problem = verdict(broken, 60)
    assert problem is not None and "run(Workload(" in problem
