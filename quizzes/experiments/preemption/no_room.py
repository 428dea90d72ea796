"""E53: the ways to run out of KV memory, and what the engine does in each: wait, preempt, refuse. Nobody dies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from engine.core.errors import RequestRejected
from quizzes.experiments import Ask, Context, experiment

Situation = Literal["newcomer", "growth", "prompt_too_long", "never_fits"]


@dataclass(frozen=True)
class Fate:
    """What became of three requests."""

    outcome: str
    """waits, preempts, rejected, or runs (nothing ran out)."""
    code: str
    """Of a rejection: prompt_too_long or exceeds_cache; empty otherwise."""
    reason: str
    """Why the last request computed nothing, the first time it did not; empty if it always did."""
    finished: Annotated[int, "requests"]
    rejected: Annotated[int, "requests"]
    num_preemptions: int
    peak_blocks: Annotated[int, "blocks"]
    waited_steps: Annotated[int, "steps"]
    """Of the last request, from its arrival until it first computed; 0 if it was refused."""
    blocks_needed: Annotated[int, "blocks"]
    """That the last request may come to hold by itself."""


@experiment("E53")
def no_room(
    ctx: Context,
    *,
    situation: Situation = "newcomer",
    prompt: Annotated[int, Field(ge=1, le=2000)] = 60,
    output: Annotated[int, Field(ge=2, le=500)] = 20,
    num_blocks: Annotated[int, Field(ge=2, le=500)] = 12,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
    max_model_len: Annotated[int, Field(ge=2, le=100_000)] = 1000,
) -> Fate:
    """Two requests of `prompt` and `output` tokens, and a last one.

    newcomer: the last is like the others and comes when the pool is nearly full. growth: all three start at once and
    grow. prompt_too_long: its prompt is max_model_len. never_fits: it alone would need one block more than the pool
    has.
    """
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        enable_prefix_caching=False,
        traced=True,
    )
    last = {
        "newcomer": Ask("last", prompt, output, arrival=1),
        "growth": Ask("last", prompt, output),
        "prompt_too_long": Ask("last", max_model_len, output, arrival=1),
        "never_fits": Ask("last", max(1, num_blocks * block_size + 2 - output), output, arrival=1),
    }[situation]
    engine.add(Ask("r0", prompt, output))
    engine.add(Ask("r1", prompt, output))
    if last.arrival:
        engine.step()
    code = ""
    try:
        engine.add(last)
    except RequestRejected as refusal:
        code = refusal.code
    engine.run()
    views = [step.why_not("last") for step in engine.steps] if not code else []
    refused = [view for view in views if view is not None]
    outcome = engine.outcomes.get("last")
    waited = outcome.admitted - outcome.arrival if outcome is not None else 0
    preempted = engine.num_preemptions
    return Fate(
        outcome="rejected" if code else "preempts" if preempted else "waits" if waited else "runs",
        code=code,
        reason=str(refused[0].reason) if refused else "",
        finished=sum(o.finished is not None for o in engine.outcomes.values()),
        rejected=int(bool(code)),
        num_preemptions=preempted,
        peak_blocks=num_blocks - min(step.free_blocks for step in engine.steps),
        waited_steps=waited,
        blocks_needed=-(-(last.prompt + last.output - 1) // block_size),  # type: ignore[operator]
    )
