"""E20: a large request at the head of the queue, small ones behind it that would fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.core.sched_output import Reason
from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.core_engine import CoreEngine, StepView
from quizzes.experiments.registry import BadArguments


@dataclass(frozen=True)
class HeadOfLine:
    """fcfs: nobody overtakes, as in vLLM and here. bypass: whoever fits is admitted."""

    fcfs_large_admitted: Annotated[int, "step"]
    bypass_large_admitted: Annotated[int, "step"]
    fcfs_small_wait: Annotated[float, "steps"]
    """Mean steps between arrival and admission of the small requests."""
    bypass_small_wait: Annotated[float, "steps"]
    blocked_steps: Annotated[int, "steps"]
    """fcfs: steps in which blocks for a small request were free and it was held back by the head."""
    head_reason: str
    """fcfs: what the scheduler says about the large request while it waits."""
    small_reason: str
    """fcfs: what it says about those behind."""
    fcfs_steps: Annotated[int, "steps"]
    bypass_steps: Annotated[int, "steps"]


@experiment("E20", "E19")
def head_of_line(
    ctx: Context,
    *,
    blocks: Annotated[int, Field(ge=4, le=400)] = 20,
    running_blocks: Annotated[int, Field(ge=1, le=400)] = 12,
    running_steps: Annotated[int, Field(ge=1, le=100)] = 15,
    large_blocks: Annotated[int, Field(ge=1, le=400)] = 12,
    small: Annotated[int, Field(ge=1, le=60)] = 4,
    small_every: Annotated[int, Field(ge=1, le=20)] = 2,
    small_steps: Annotated[int, Field(ge=1, le=14)] = 5,
) -> HeadOfLine:
    """One request holds `running_blocks` of the `blocks`; a large prompt arrives, then small ones of one block each.

    Block size 16; prompts leave room for their outputs in their last blocks. The small ones arrive one every
    `small_every` steps from step 2 on.
    """
    if max(running_blocks, large_blocks) > blocks:
        raise BadArguments("running_blocks and large_blocks must each fit into blocks, or it could never run")
    fits = 16
    asks = [
        Ask("running", max(1, running_blocks * fits - running_steps), running_steps),
        Ask("large", max(1, large_blocks * fits - 2), 2, arrival=1),
        *(
            Ask(f"small{i}", fits - small_steps, small_steps, arrival=2 + i * small_every)
            for i in range(small)
        ),
    ]
    from quizzes.experiments.scheduling._policies import BypassScheduler

    fcfs = ctx.core(num_blocks=blocks, traced=True).run(asks)
    bypass = ctx.core(num_blocks=blocks, make_scheduler=BypassScheduler).run(asks)
    held = [step for step in fcfs.steps if step.free_blocks >= 1 and _is_held_back(step, small)]
    reasons = [step.why_not("large") for step in fcfs.steps]
    return HeadOfLine(
        fcfs.outcomes["large"].admitted,  # type: ignore[arg-type]
        bypass.outcomes["large"].admitted,  # type: ignore[arg-type]
        _mean_wait(fcfs, small),
        _mean_wait(bypass, small),
        len(held),
        next((str(reason.reason) for reason in reasons if reason), "never waited"),
        str(Reason.BEHIND_IN_QUEUE) if held else "never waited",
        fcfs.num_steps,
        bypass.num_steps,
    )


def _is_held_back(step: StepView, small: int) -> bool:
    """Some small request waits in this step because of the one ahead."""
    reasons = [step.why_not(f"small{i}") for i in range(small)]
    waits = [reason for reason in reasons if reason is not None]
    return step.plan.scheduled != [] and any(r.reason is Reason.BEHIND_IN_QUEUE for r in waits)


def _mean_wait(engine: CoreEngine, small: int) -> float:
    outcomes = [engine.outcomes[f"small{i}"] for i in range(small)]
    return sum(outcome.admitted - outcome.arrival for outcome in outcomes) / small  # type: ignore[operator]
