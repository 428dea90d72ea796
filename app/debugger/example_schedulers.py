"""Three schedulers to try on a recorded run, each differing from the real one in a few lines.

    prep trace fork run.itrace --at 40 --scheduler app.debugger.example_schedulers:ShortestFirst

None has an `__init__`, so each can take over a run in its middle. Write your own in a file beside you and name it
the same way: --scheduler my_file:MyScheduler.
"""

from __future__ import annotations

from engine.core.queues import SortKey
from engine.core.request import Request
from engine.core.scheduler import Scheduler, StepPlan


class ShortestFirst(Scheduler):
    """The shortest prompt is the most important: it starts first and is preempted last.

    Short requests answer sooner; a long one can wait for as long as short ones keep coming.
    """

    def sort_key(self, request: Request, order: int) -> SortKey:
        return (request.num_prompt_tokens, request.arrival_time, order)


class PrefillFirst(Scheduler):
    """Waiting requests start before running ones continue: first tokens are early, decoding requests stall.

    What vLLM did before chunked prefill.
    """

    def _schedule_running(self, plan: StepPlan) -> None:
        self._schedule_waiting(plan)
        rows = {row.request_id for row in plan.rows}
        started = [request for request in self.running if request.request_id in rows]
        self.running = [request for request in self.running if request.request_id not in rows]
        super()._schedule_running(plan)
        self.running = sorted([*self.running, *started], key=lambda request: request.sort_key)


class DecodeFirst(Scheduler):
    """No request starts while a running one still computes its prompt: one prefill at a time next to the decodes.

    Tokens come at an even pace, and the queue is longer.
    """

    def _schedule_waiting(self, plan: StepPlan) -> None:
        if all(request.num_computed_tokens >= request.num_prompt_tokens for request in self.running):
            super()._schedule_waiting(plan)
