"""E19: what must be free before a request starts: its prompt, a margin, or all that it may ever need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from engine.core.errors import RequestRejected
from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.registry import BadArguments

Rule = Literal["prompt", "watermark", "full"]


@dataclass(frozen=True)
class Admissions:
    """Of equal requests that all wait at step 0."""

    admitted_first: Annotated[int, "requests"]
    """Admitted in the first step that admits anybody."""
    blocks_first: Annotated[int, "blocks"]
    """Taken after that step."""
    peak_running: Annotated[int, "requests"]
    preemptions: int
    recomputed_tokens: Annotated[int, "tokens"]
    """Computed more than once."""
    steps: Annotated[int, "steps"]
    """Until everybody has finished."""
    mean_running: Annotated[float, "requests"]
    """Requests that computed, per step."""
    first_reason: str
    """Why the first one that was turned away could not start; empty if nobody was."""
    first_need: Annotated[int, "blocks"]
    """What that reason says was missing or needed."""
    refused: Annotated[int, "requests"]
    """At the door: with max_tokens they could not finish alone on an empty cache."""


@experiment("E19")
def admission(
    ctx: Context,
    *,
    rule: Rule = "prompt",
    blocks: Annotated[int, Field(ge=2, le=2000)] = 40,
    requests: Annotated[int, Field(ge=1, le=100)] = 12,
    prompt: Annotated[int, Field(ge=1, le=2000)] = 60,
    output: Annotated[int, Field(ge=1, le=500)] = 80,
    max_tokens: Annotated[int, Field(ge=0, le=2000)] = 0,
    max_num_seqs: Annotated[int, Field(ge=1, le=256)] = 256,
    block_size: Annotated[int, Field(ge=1, le=64)] = 16,
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.1,
) -> Admissions:
    """Admit by one of three rules and see who is preempted.

    prompt: blocks for all known tokens, nothing for what will be generated (this engine; vLLM 0.32 with its default
    scheduler_reserve_full_isl). watermark: the same, and a share of all blocks stays free. full: room for max_tokens
    of everybody who runs. A request generates `output` tokens and asked for at most max_tokens (0: the same number).
    """
    limit = max_tokens or output
    if limit < output:
        raise BadArguments(
            f"max_tokens {limit} is less than output {output}: nobody can generate more than it asked for"
        )
    from quizzes.experiments.scheduling import _reserve

    makers = {"watermark": _reserve.watermark(watermark), "full": _reserve.ReservingScheduler}
    own = {"make_scheduler": makers[rule]} if rule in makers else {}
    engine = ctx.core(
        num_blocks=blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=100_000,
        traced=True,
        **own,
    )
    refused = 0
    for index in range(requests):
        try:
            engine.add(Ask(f"r{index}", prompt, output, max_tokens=limit))
        except RequestRejected:
            refused += 1
    if refused == requests:
        return Admissions(0, 0, 0, 0, 0, 0, 0.0, "", 0, refused)
    engine.run()
    first = next(step for step in engine.steps if step.stats.num_admitted)
    reasons = [entry for entry in first.plan.not_scheduled if entry.request_id]
    computed = sum(outcome.computed_tokens for outcome in engine.outcomes.values())
    return Admissions(
        len(first.rows),
        blocks - first.free_blocks,
        max(len(step.rows) for step in engine.steps),
        engine.num_preemptions,
        computed - requests * (prompt + output - 1),
        engine.num_steps,
        sum(len(step.rows) for step in engine.steps) / engine.num_steps,
        str(reasons[0].reason) if reasons else "",
        reasons[0].details.get("need", 0) if reasons else 0,
        refused,
    )
