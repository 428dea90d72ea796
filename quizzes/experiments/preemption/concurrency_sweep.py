"""E17: more running requests than memory holds to their end: preemptions, recomputed tokens, steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Sweep:
    """By entry of `limits`."""

    preemptions: Annotated[list[int], "preemptions"]
    recomputed_tokens: Annotated[list[int], "tokens"]
    total_steps: Annotated[list[int], "steps"]
    best_limit: int
    """The max_num_seqs that computes the fewest positions, the largest among equals."""
    safe_limit: int
    """Requests whose blocks all fit at their final length."""


@experiment("E17")
def concurrency_sweep(
    ctx: Context,
    *,
    num_requests: Annotated[int, Field(ge=1, le=64)] = 24,
    prompt: Annotated[int, Field(ge=1, le=500)] = 32,
    output: Annotated[int, Field(ge=2, le=500)] = 96,
    num_blocks: Annotated[int, Field(ge=2, le=2000)] = 40,
    limits: Annotated[list[Annotated[int, Field(ge=1, le=256)]], Field(min_length=1, max_length=8)] = (
        2,
        5,
        8,
        24,
    ),
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
) -> Sweep:
    """The same requests, all there at the start, under several values of max_num_seqs. Prefix caching is off."""
    asks = [Ask(f"r{i}", prompt, output) for i in range(num_requests)]
    needed = num_requests * (prompt + output - 1)
    preemptions, recomputed, steps = [], [], []
    for limit in limits:
        engine = ctx.core(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=limit,
            enable_prefix_caching=False,
            traced=limit == max(limits),
        ).run(asks)
        preemptions.append(engine.num_preemptions)
        recomputed.append(sum(o.computed_tokens for o in engine.outcomes.values()) - needed)
        steps.append(engine.num_steps)
    fewest = min(recomputed)
    return Sweep(
        preemptions=preemptions,
        recomputed_tokens=recomputed,
        total_steps=steps,
        best_limit=max(limit for limit, count in zip(limits, recomputed, strict=True) if count == fewest),
        safe_limit=num_blocks // -(-(prompt + output - 1) // block_size),
    )
