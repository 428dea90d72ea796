"""Requests for measuring: random tokens of given lengths, and steps with a clock on every part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Self, cast

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class Lengths:
    """Uniform distribution of token counts from `low` to `high`, inclusive."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "128" or "128-256". Raises ValueError otherwise."""
        low, separator, high = text.partition("-")
        try:
            lengths = cls(int(low), int(high if separator else low))
        except ValueError:
            raise ValueError(f"expected a number of tokens or a range like 128-256, got {text!r}") from None
        if not 1 <= lengths.low <= lengths.high:
            raise ValueError(f"a length is at least 1 and a range goes upwards, got {text!r}")
        return lengths

    def draw(self, rng: Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True)
class Work:
    """Requests submitted together: prompts as token ids or text, and the tokens to generate for each."""

    prompts: list[list[int] | str]
    max_tokens: list[int]


def draw_work(count: int, input_len: Lengths, output_len: Lengths, vocab_size: int, seed: str) -> Work:
    """Draw random prompts without a common prefix, and random lengths; the same for the same seed."""
    rng = Random(seed)
    prompts: list[list[int] | str] = [
        [rng.randrange(vocab_size) for _ in range(input_len.draw(rng))] for _ in range(count)
    ]
    return Work(prompts, [output_len.draw(rng) for _ in range(count)])


@dataclass(slots=True)
class TimedStep:
    """Times of one engine step in seconds, and its load. `execute` is all but schedule and update."""

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
    core: EngineCore, count: int, input_len: Lengths, output_len: Lengths, *, label: str
) -> list[str]:
    """Queue `count` requests that share no prefix and do not stop early; return their ids."""
    work = draw_work(count, input_len, output_len, core.config.model.vocab_size, label)
    ids = []
    for index, (prompt, max_tokens) in enumerate(zip(work.prompts, work.max_tokens, strict=True)):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        request = Request(f"{label}-{index}", cast(list[int], prompt), params)
        core.add_request(request)
        ids.append(request.request_id)
    return ids


def timed_steps(core: EngineCore) -> Iterator[TimedStep]:
    """Run the engine until no request is left; yield every step."""
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
    """Time a scheduler's two methods, for any scheduler class."""

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


def warm_up(core: EngineCore, input_len: Lengths) -> None:
    """Run once before measuring: first calls allocate memory and choose algorithms."""
    add_requests(core, 4, input_len, Lengths(4, 4), label="warm-up")
    for _ in timed_steps(core):
        pass
