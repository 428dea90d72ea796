"""Requests for measuring: random tokens of fixed length, and steps with a clock on every part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams


@dataclass(slots=True)
class TimedStep:
    """One engine step in seconds, and what it did. `execute` is all but schedule and update."""

    schedule: float
    execute: float
    update: float
    num_tokens: int
    num_prefill_tokens: int
    num_rows: int
    num_sampled: int
    outputs: list[EngineCoreOutput]

    @property
    def total(self) -> float:
        return self.schedule + self.execute + self.update


def add_requests(
    core: EngineCore, count: int, input_len: int, output_len: int, *, label: str, seed: int = 0
) -> list[str]:
    """Queue `count` requests that share no prefix and do not stop early; returns their ids."""
    rng = Random(f"{label}/{seed}")
    vocab_size = core.config.model.vocab_size
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    ids = []
    for index in range(count):
        prompt = [rng.randrange(vocab_size) for _ in range(input_len)]
        request = Request(f"{label}-{index}", prompt, params)
        core.add_request(request)
        ids.append(request.request_id)
    return ids


def timed_steps(core: EngineCore) -> Iterator[TimedStep]:
    """Run the engine until it has nothing to do."""
    watch = _Watch(core.scheduler)
    while core.has_unfinished():
        start = perf_counter()
        outputs = core.step()
        total = perf_counter() - start
        yield TimedStep(
            schedule=watch.schedule,
            execute=total - watch.schedule - watch.update,
            update=watch.update,
            num_tokens=watch.out.num_scheduled_tokens,
            num_prefill_tokens=core.scheduler.stats.num_prefill_tokens,
            num_rows=len(watch.out.scheduled),
            num_sampled=sum(len(output.new_token_ids) for output in outputs),
            outputs=outputs,
        )
    watch.remove()


class _Watch:
    """Stands before a scheduler's two methods with a clock, whatever its class."""

    out: SchedulerOutput
    schedule = update = 0.0

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        plan, take_in = scheduler.schedule, scheduler.update

        def timed_schedule() -> SchedulerOutput:
            start = perf_counter()
            self.out = plan()
            self.schedule = perf_counter() - start
            return self.out

        def timed_update(out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
            start = perf_counter()
            outputs = take_in(out, result)
            self.update = perf_counter() - start
            return outputs

        scheduler.schedule = timed_schedule  # type: ignore[method-assign]
        scheduler.update = timed_update  # type: ignore[method-assign]

    def remove(self) -> None:
        del self._scheduler.schedule, self._scheduler.update


def warm_up(core: EngineCore, input_len: int) -> None:
    """First calls allocate and choose algorithms; what users feel comes after."""
    add_requests(core, 4, input_len, 4, label="warm-up")
    for _ in timed_steps(core):
        pass
