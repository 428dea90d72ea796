"""Requests for measuring: random tokens of given lengths, and steps with a clock on every part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Self, cast

from engine.config import ConfigError
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams
from engine.sim.cost import StepLoad, load_of

Timer = Callable[[], float]
"""Clock in seconds: `perf_counter`, or `thread_time` for one thread on a busy machine."""


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

    load: StepLoad
    """Empty unless the clock records loads."""
    schedule: float
    execute: float
    update: float = 0.0
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_rows: int = 0
    outputs: list[EngineCoreOutput] = field(default_factory=list)

    @property
    def planning(self) -> float:
        return self.schedule + self.update

    @property
    def total(self) -> float:
        return self.planning + self.execute

    @property
    def num_sampled(self) -> int:
        return sum(len(output.new_token_ids) for output in self.outputs)


class StepClock:
    """Times every step of an engine and its parts; with `loads` it also records what a step computes.

    It wraps two methods of the scheduler, of any class, until `remove`.
    """

    schedule = update = aside = 0.0
    """Seconds of the parts of the current step; aside: of the clock itself."""
    load = StepLoad()
    out: SchedulerOutput

    def __init__(self, core: EngineCore, timer: Timer = perf_counter, *, loads: bool = False) -> None:
        self._core, self._timer, self._loads = core, timer, loads
        self._plan, self._take_in = core.scheduler.schedule, core.scheduler.update
        core.scheduler.schedule = self._timed_schedule  # type: ignore[method-assign]
        core.scheduler.update = self._timed_update  # type: ignore[method-assign]

    def _timed_schedule(self) -> SchedulerOutput:
        start = self._timer()
        self.out = self._plan()
        planned = self._timer()
        self.schedule = planned - start
        if self._loads:
            self.load = load_of(self.out, self._core.scheduler.requests)
            self.aside = self._timer() - planned
        return self.out

    def _timed_update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        start = self._timer()
        outputs = self._take_in(out, result)
        self.update = self._timer() - start
        return outputs

    def step(self) -> TimedStep:
        """Run one step of the engine."""
        start = self._timer()
        outputs = self._core.step()
        execute = self._timer() - start - self.aside - self.schedule - self.update
        num_prefill_tokens = self._core.scheduler.stats.num_prefill_tokens
        sizes = (self.out.num_scheduled_tokens, num_prefill_tokens, len(self.out.scheduled))
        return TimedStep(self.load, self.schedule, execute, self.update, *sizes, outputs)

    def remove(self) -> None:
        del self._core.scheduler.schedule, self._core.scheduler.update


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
    clock = StepClock(core)
    while core.has_unfinished():
        yield clock.step()
    clock.remove()


def require_room(core: EngineCore, input_len: Lengths, output_len: Lengths) -> None:
    """Raise ConfigError if the longest request is longer than the model allows: its output would be cut."""
    longest, allowed = input_len.high + output_len.high, core.config.scheduler.max_model_len
    if longest > allowed:
        raise ConfigError(
            f"{input_len.high} tokens in and {output_len.high} out are {longest}, and max_model_len is {allowed}; "
            "ask for less with --input-len or --output-len"
        )


def warm_up(core: EngineCore, input_len: Lengths) -> None:
    """Run once before measuring: first calls allocate memory and choose algorithms."""
    add_requests(core, 4, input_len, Lengths(4, 4), label="warm-up")
    for _ in timed_steps(core):
        pass
