"""E07: time of scheduling with the prefix cache on and off, for requests that share nothing and that share much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.measure import paired_ratio
from quizzes.experiments.prefix_cache._tokens import Fresh


@dataclass(frozen=True)
class Overhead:
    """Scheduler and block bookkeeping alone, no model: on over off."""

    ratio: Annotated[float, "x"]
    lo: Annotated[float, "x"]
    hi: Annotated[float, "x"]
    """Bootstrap 95 % interval."""
    extra_us_per_request: Annotated[float, "us"]
    """On this machine: to be set against the milliseconds of a forward pass."""
    repeats: int


@experiment("E07", determinism="statistical", seconds=20)
def caching_overhead(
    ctx: Context,
    *,
    requests: Annotated[int, Field(ge=4, le=200)] = 60,
    prompt: Annotated[int, Field(ge=16, le=2000)] = 512,
    output: Annotated[int, Field(ge=1, le=60)] = 20,
    shared: Annotated[int, Field(ge=0, le=2000)] = 0,
) -> Overhead:
    """`requests` prompts, of whose `prompt` tokens the first `shared` are common, scheduled with caching on and off."""
    fresh = Fresh()
    shared = min(shared, prompt)
    beginning = fresh(shared)
    asks = [Ask(f"r{i}", beginning + fresh(prompt - shared), fresh(output)) for i in range(requests)]

    def serve(caching: bool) -> None:
        ctx.core(num_blocks=requests * 40, max_num_seqs=32, enable_prefix_caching=caching).run(asks)

    ratio = paired_ratio(lambda: serve(True), lambda: serve(False), seconds=4.0)
    extra = (ratio.a_seconds - ratio.b_seconds) / requests * 1e6
    return Overhead(ratio.median, ratio.lo, ratio.hi, extra, ratio.repeats)
