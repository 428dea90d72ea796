"""A simulated GPU for lesson 10: the engine's scheduler, with a roofline as its clock.

serve_beside(512)               one long prompt beside requests that decode: rows and seconds of each step
serve_traffic(512, seed=0)      mixed traffic: mean TTFT, and all gaps between tokens
"""

from __future__ import annotations

from typing import NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.sim.cost import CostModel, StepLoad, load_of, pairs_of
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload

MODEL, HARDWARE = "llama-3.1-8b", "h100"
LONG = "long"
"""Id of the long prompt's request."""
_LONGEST = 65_536


class Step(NamedTuple):
    """One step: what was computed, and how long it took."""

    start: float
    """Virtual seconds since the long prompt arrived."""
    seconds: float
    tokens: dict[str, int]
    """Request id -> tokens computed."""


class Served(NamedTuple):
    """What the decoding requests and the long prompt saw."""

    steps: list[Step]
    """From the arrival of the long prompt on."""
    ttft: float
    """Seconds until the long prompt's first token."""
    quiet: float
    """Seconds of the step before its arrival."""

    @property
    def chunks(self) -> list[int]:
        """Tokens of the long prompt, step by step."""
        return [step.tokens[LONG] for step in self.steps if step.start < self.ttft]

    @property
    def worst_gap(self) -> float:
        """Longest gap between two tokens of a request that decodes: the longest step, as each has a row in all."""
        return max(step.seconds for step in self.steps)


def cost_model() -> CostModel:
    """Return the roofline of the model on the GPU."""
    return CostModel(_deployment(8192))


def step_seconds(decodes: int, context: int, chunk: int = 0, start: int = 0) -> float:
    """Return the time of a step: `decodes` tokens at `context`, and `chunk` prompt tokens from `start` on."""
    rows, pairs = decodes + (chunk > 0), pairs_of(start, chunk, None)
    load = StepLoad(rows, decodes + chunk, rows, decodes * context, pairs, start + chunk if chunk else 0)
    return cost_model().seconds(load)


def serve_beside(
    budget: int, *, prompt: int = 4096, decodes: int = 16, context: int = 1000, more_steps: int = 12
) -> Served:
    """Serve one long prompt that arrives while `decodes` requests generate, until `more_steps` after its first token."""
    config = SchedulerConfig(budget, decodes + 1, _LONGEST)
    cost, scheduler = cost_model(), Scheduler(config, CacheConfig(40_000, 16))

    def step() -> tuple[SchedulerOutput, float]:
        out = scheduler.schedule()
        seconds = cost.seconds(load_of(out, scheduler.requests))
        complete = (
            row.request_id
            for row in out.scheduled
            if row.start + row.num_tokens == scheduler.requests[row.request_id].num_tokens
        )
        scheduler.update(out, ModelRunnerOutput({request_id: [-1] for request_id in complete}))
        return out, seconds

    for index in range(decodes):
        scheduler.add(_request(f"d{index}", index, context))
    quiet = 0.0
    while any(request.num_output_tokens < 4 for request in scheduler.requests.values()):
        quiet = step()[1]
    scheduler.add(long := _request(LONG, decodes, prompt))
    steps: list[Step] = []
    now = ttft = 0.0
    while long.num_output_tokens < 1 + more_steps:
        out, seconds = step()
        steps.append(Step(now, seconds, {row.request_id: row.num_tokens for row in out.scheduled}))
        now += seconds
        ttft = ttft or (now if long.num_output_tokens else 0.0)
    return Served(steps, ttft, quiet)


def serve_traffic(
    budget: int, seed: int, *, num_requests: int = 60, rate: float = 6.0
) -> tuple[float, list[float]]:
    """Serve random traffic; return the mean TTFT and all gaps between tokens, in seconds.

    Prompts have 2,000 tokens on average and answers 60, log-normal; arrivals are Poisson.
    """
    lengths = Lengths.parse("lognormal:2000:1.0"), Lengths.parse("lognormal:60:0.5")
    workload = Workload(num_requests, rate, *lengths, max_model_len=16_384, seed=seed)
    engine = make_engine(_deployment(budget), num_blocks=40_000, enable_prefix_caching=False)
    engine.run(workload)
    recorder = engine.recorder
    gaps = [gap for gap, count in zip(recorder.gaps, recorder.gap_counts, strict=True) for _ in range(count)]
    return sum(record.ttft for record in recorder.finished) / len(recorder.finished), gaps


def _deployment(budget: int) -> Deployment:
    return Deployment(
        get_model(MODEL), get_hardware(HARDWARE), max_num_batched_tokens=budget, max_num_seqs=64,
        max_model_len=_LONGEST,
    )  # fmt: skip


def _request(name: str, number: int, length: int) -> Request:
    """Return a request with tokens of its own, so that nothing is shared."""
    first = number << 24
    return Request(
        name, list(range(first, first + length)), SamplingParams(max_tokens=20_000, ignore_eos=True)
    )
