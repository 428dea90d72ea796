"""The engine's scheduler without a model, for labs that put a learner's part behind it."""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler

MAX_STEPS = 400


def decisions(scheduler: Scheduler, requests: Iterable[Request]) -> list[str]:
    """Serve requests, every sampled token a 7; return a line for each step. Raises if the scheduler breaks a rule."""
    for request in requests:
        scheduler.add(request)
    steps: list[str] = []
    while scheduler.has_unfinished() and len(steps) < MAX_STEPS:
        out = scheduler.schedule()
        rows = [(row.request_id, row.start, row.num_tokens) for row in out.scheduled]
        result = ModelRunnerOutput()
        for row in out.scheduled:
            request = scheduler.requests.get(row.request_id)
            if request is not None and row.start + row.num_tokens >= request.num_tokens:
                result.sampled_token_ids[row.request_id] = [7]
        scheduler.update(out, result)
        scheduler.check_integrity()
        preempted = f", preempted {list(out.preempted_request_ids)}" if out.preempted_request_ids else ""
        steps.append(f"rows {rows}{preempted}; {scheduler.kv.pool.num_used} blocks in use after it")
    return steps
