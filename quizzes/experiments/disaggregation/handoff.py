"""E45: what a decode replica still computes when a prompt's KV has arrived: blocks are handed over whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Handoff:
    """One request behind its prefill, on the decode replica's scheduler."""

    blocks_placed: Annotated[int, "blocks"]
    """Full blocks of the prompt that lie in the cache when the request arrives."""
    cached_tokens: Annotated[int, "tokens"]
    """That admission finds."""
    first_step_tokens: Annotated[int, "tokens"]
    """That its first step here computes: what is left of the last block, and the first token."""
    recomputed_prompt_tokens: Annotated[int, "tokens"]
    steps: Annotated[int, "steps"]
    """On this replica, for all but the first output token."""


@experiment("E45")
def handoff(
    ctx: Context,
    *,
    prompt: Annotated[int, Field(ge=1, le=20_000)] = 1000,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
    output: Annotated[int, Field(ge=2, le=500)] = 20,
    free_blocks: Annotated[int, Field(ge=1, le=20_000)] = 5000,
) -> Handoff:
    """Place the KV as the simulator's decode pool does and let the real scheduler admit the request.

    free_blocks: the cache's size. Blocks that find no room are computed again. It must hold the request.
    """
    from engine.core.request import Request
    from engine.sampling_params import SamplingParams
    from engine.sim.disaggregation import place_blocks
    from quizzes.experiments import Ask

    engine = ctx.core(
        num_blocks=free_blocks, block_size=block_size, max_num_batched_tokens=32_768, traced=True
    )
    tokens = [*range(prompt), 10**6]  # the first output token came with the prefill
    core = Request("r", tokens, SamplingParams(max_tokens=output - 1))
    placed = place_blocks(engine.scheduler.kv, core, prompt)
    engine.add(Ask("r", tokens, output - 1))
    first = engine.step()
    (_, computed) = first.rows["r"]
    while engine.scheduler.has_unfinished():
        engine.step()
    engine.close()
    cached = engine.outcomes["r"].cached_tokens
    return Handoff(
        blocks_placed=placed,
        cached_tokens=cached,
        first_step_tokens=computed,
        recomputed_prompt_tokens=max(0, prompt - cached),
        steps=engine.num_steps,
    )
