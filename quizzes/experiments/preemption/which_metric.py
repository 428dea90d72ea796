"""E17: does a preemption show in TTFT or in the gap between tokens? The same load with and without memory pressure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, CoreEngine, experiment


@dataclass(frozen=True)
class Delays:
    """Two requests that run from the start, and a third one. Steps, with little memory less with plenty."""

    victim: Annotated[int, "request"]
    """The first to lose its blocks; -1 if nobody does."""
    victim_had_tokens: Annotated[int, "tokens"]
    """Output that it had by then."""
    victim_ttft_delay: Annotated[int, "steps"]
    victim_longest_gap: Annotated[int, "steps"]
    """Between two of its tokens; 1 is undisturbed."""
    victim_gap_undisturbed: Annotated[int, "steps"]
    others_ttft_delay: Annotated[list[int], "steps"]
    """Of the other requests, in order: 0, or what they waited longer for their first token."""
    num_preemptions: int


@experiment("E17")
def which_metric(
    ctx: Context,
    *,
    prompt: Annotated[int, Field(ge=1, le=2000)] = 64,
    output: Annotated[int, Field(ge=2, le=1000)] = 64,
    last_prompt: Annotated[int, Field(ge=1, le=2000)] = 64,
    last_arrival: Annotated[int, Field(ge=0, le=1000)] = 4,
    num_blocks: Annotated[int, Field(ge=2, le=1000)] = 13,
    budget: Annotated[int, Field(ge=3, le=8192)] = 512,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
) -> Delays:
    """Run three requests in `num_blocks` and in ample memory; compare when their tokens came."""
    asks = [
        Ask("r0", prompt, output),
        Ask("r1", prompt, output),
        Ask("r2", last_prompt, output, arrival=last_arrival),
    ]
    settings = {
        "block_size": block_size,
        "max_num_batched_tokens": budget,
        "enable_prefix_caching": False,
    }
    tight = ctx.core(num_blocks=num_blocks, traced=True, **settings).run(asks)
    ample = ctx.core(num_blocks=10_000, **settings).run(asks)
    lost = [(step.index, name) for step in tight.steps for name in step.preempted]
    late = {name: _first(tight, name) - _first(ample, name) for name in ("r0", "r1", "r2")}
    if not lost:
        return Delays(-1, 0, 0, 0, 0, list(late.values()), 0)
    step, victim = lost[0]
    return Delays(
        victim=int(victim[1:]),
        victim_had_tokens=sum(s < step for s in tight.outcomes[victim].token_steps),
        victim_ttft_delay=late[victim],
        victim_longest_gap=_longest_gap(tight, victim),
        victim_gap_undisturbed=_longest_gap(ample, victim),
        others_ttft_delay=[delay for name, delay in late.items() if name != victim],
        num_preemptions=len(lost),
    )


def _first(engine: CoreEngine, name: str) -> int:
    return engine.outcomes[name].token_steps[0]


def _longest_gap(engine: CoreEngine, name: str) -> int:
    steps = engine.outcomes[name].token_steps
    return max([later - earlier for earlier, later in pairwise(steps)], default=0)
