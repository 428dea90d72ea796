"""The engine's scheduler without a model, for labs that put a learner's part behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.sim.cost import CostModel, load_of
from engine.sim.engine import SimEngine, VirtualClock
from engine.sim.memory import Deployment, make_deployment
from engine.sim.recorder import RequestRecord
from engine.sim.workload import SimRequest
from lessons.course.checking import Failed, fewest
from lessons.labs.recording import record_both, recorded, recorded_engine
from prep_common.sandbox import GuestError

MAX_STEPS = 400
Wish = TypeVar("Wish")
Service = tuple[Scheduler, list[Request]]
"""A fresh scheduler, and the requests that it gets before its first step."""


class Ask(NamedTuple):
    """A request: the text that its prompt begins like, tokens of that text, tokens of its own, output tokens."""

    text: int
    common: int
    own: int
    output: int
    salt: str | None = None


def requests_of(asks: Iterable[Ask]) -> list[Request]:
    """Return greedy requests r0, r1, ... Prompts of the same text begin with the same tokens."""
    requests = []
    for index, ask in enumerate(asks):
        params = SamplingParams(temperature=0, max_tokens=ask.output, ignore_eos=True)
        tokens = [100 * ask.text + at for at in range(ask.common)] + [1000 + index] * ask.own
        requests.append(Request(f"r{index}", tokens, params, cache_salt=ask.salt))
    return requests


class LabScheduler(Scheduler):
    """The engine's scheduler on a KV manager with the learner's part."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig, kv_class: Callable[..., Any]) -> None:
        self.kv_class: Any = kv_class
        super().__init__(config, cache)


def decisions(scheduler: Scheduler, requests: Iterable[Request], path: Path | None = None) -> list[str]:
    """Serve requests, every sampled token a 7; return a line for each step. Raises if the scheduler breaks a rule.

    path: where to record a trace of the run.
    """
    steps: list[str] = []
    with recorded(path, scheduler):
        for request in requests:
            scheduler.add(request)
        while scheduler.has_unfinished() and len(steps) < MAX_STEPS:
            steps.append(_step(scheduler))
    return steps


def admissions(engine: SimEngine, requests: Iterable[SimRequest], path: Path | None) -> list[RequestRecord]:
    """Serve requests on a simulated engine; return their records in order of admission. path: where to record."""
    with recorded_engine(path, engine):
        engine.run(requests)
    return sorted(
        engine.recorder.finished,
        key=lambda record: (record.scheduled, record.first_token, record.request.index),
    )


@cache
def h100(max_num_seqs: int) -> Deployment:
    """Return Llama 3 8B on one H100."""
    return make_deployment(model="llama-3-8b", gpu="h100", max_num_seqs=max_num_seqs)


def record_in_virtual_time(
    scheduler: Scheduler, arrivals: Sequence[tuple[float, Request]], cost: CostModel, path: Path
) -> None:
    """Serve requests that arrive over time and record the run. A cost model gives each step its duration."""
    clock, ahead = VirtualClock(), deque(arrivals)
    with recorded(path, scheduler, clock):
        while ahead or scheduler.has_unfinished():
            if not scheduler.has_unfinished():
                clock.now = max(clock.now, ahead[0][0])
            while ahead and ahead[0][0] <= clock.now:
                scheduler.add(ahead.popleft()[1])
            out = scheduler.schedule()
            result = _answer(scheduler, out)
            clock.now += cost.seconds(load_of(out, scheduler.requests))
            scheduler.update(out, result)


def _answer(scheduler: Scheduler, out: SchedulerOutput) -> ModelRunnerOutput:
    """Return a token 7 for each row that reaches its request's last known token."""
    result = ModelRunnerOutput()
    for row in out.scheduled:
        request = scheduler.requests.get(row.request_id)
        if request is not None and row.start + row.num_tokens >= request.num_tokens:
            result.sampled_token_ids[row.request_id] = [7]
    return result


def _step(scheduler: Scheduler) -> str:
    out = scheduler.schedule()
    rows = [(row.request_id, row.start, row.num_tokens) for row in out.scheduled]
    scheduler.update(out, _answer(scheduler, out))
    scheduler.check_integrity()
    preempted = f", preempted {list(out.preempted_request_ids)}" if out.preempted_request_ids else ""
    return f"rows {rows}{preempted}; {scheduler.kv.pool.num_used} blocks in use after it"


def decide_the_same(
    lab: str,
    asks: Sequence[Wish],
    ours: Callable[[list[Wish]], Service],
    yours: Callable[[list[Wish]], Service],
    said: str,
    show: Callable[[list[Wish]], str] = repr,
) -> None:
    """Compare the engine's decisions with the learner's part and without it.

    ours, yours: make the scheduler and the requests of a workload. said: where the engine's decision was made, such as
    "with our manager". Raises Failed with the smallest workload that differs, and with both runs as traces.
    """

    def difference(some: list[Wish]) -> str | None:
        right = decisions(*ours(some))
        try:
            found = decisions(*yours(some))
        except GuestError as error:
            if error.is_stub:
                raise
            return str(error)
        except (Failed, LookupError, ValueError, TypeError, RuntimeError, MemoryError) as error:
            return str(error)
        for step, (mine, theirs) in enumerate(zip(right, found, strict=False)):
            if mine != theirs:
                return f"step {step} is {theirs}; {said} it is {mine}"
        if len(found) != len(right):
            return f"it takes {len(found)} steps, {said} {len(right)}"
        return None

    if difference(list(asks)) is None:
        return
    few = fewest(list(asks), lambda some: bool(some) and difference(some) is not None, 30)
    why = difference(few) or "two runs of the same requests differ"
    traces = record_both(
        lab, lambda path: decisions(*yours(few), path), lambda path: decisions(*ours(few), path)
    )
    raise Failed(why, example=show(few), traces=traces)
