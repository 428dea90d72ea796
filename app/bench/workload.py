"""Requests for measuring: random tokens of fixed length, and steps with a clock on every part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams


@dataclass(slots=True)
class TimedStep:
    """One engine step in seconds, and what it did."""

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
    """Run the engine until it has nothing to do. The same three calls as `EngineCore.step`."""
    while core.has_unfinished():
        start = perf_counter()
        out = core.scheduler.schedule()
        planned = perf_counter()
        result = core.executor.execute(out)
        computed = perf_counter()
        outputs = core.scheduler.update(out, result)
        done = perf_counter()
        yield TimedStep(
            planned - start,
            computed - planned,
            done - computed,
            out.num_scheduled_tokens,
            core.scheduler.stats.num_prefill_tokens,
            len(out.scheduled),
            len(result.sampled_token_ids),
            outputs,
        )


def warm_up(core: EngineCore, input_len: int) -> None:
    """First calls allocate and choose algorithms; what users feel comes after."""
    add_requests(core, 4, input_len, 4, label="warm-up")
    for _ in timed_steps(core):
        pass
