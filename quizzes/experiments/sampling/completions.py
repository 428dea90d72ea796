"""E40: one prompt, several completions: how many requests n and best_of become, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Completions:
    """What one call costs."""

    computed: Annotated[int, "completions"]
    returned: Annotated[int, "completions"]
    child_requests: Annotated[int, "requests"]
    """That the scheduler sees."""
    seeds: Annotated[list[int], "seed"]
    """Of the children, when the call has seed 100."""
    prompt_tokens_computed: Annotated[int, "tokens"]
    """All children together."""
    prompt_tokens_cached: Annotated[int, "tokens"]
    generated_tokens: Annotated[int, "tokens"]
    steps: Annotated[int, "steps"]
    peak_blocks: Annotated[int, "blocks"]
    peak_blocks_unshared: Annotated[int, "blocks"]
    """If every child had computed and kept the whole prompt by itself."""


@experiment("E40")
def completions(
    ctx: Context,
    *,
    n: Annotated[int, Field(ge=1, le=64)] = 3,
    best_of: Annotated[int | None, Field(ge=1, le=64)] = None,
    prompt: Annotated[int, Field(ge=1, le=20_000)] = 100,
    output: Annotated[int, Field(ge=1, le=2000)] = 20,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
) -> Completions:
    """Fan a request out as the engine does and run its children on the scheduler.

    best_of: compute so many and return the best n; None is n. Smaller than n is refused.
    """
    from engine.core.request import Request
    from engine.frontend.parallel_sampling import fan_out
    from engine.sampling_params import SamplingParams

    params = SamplingParams(n=n, best_of=best_of, max_tokens=output)
    parent = Request("call", list(range(prompt)), params, seed=100)
    children = fan_out(parent, params.num_completions)
    engine = ctx.core(block_size=block_size, traced=True)
    asks = [Ask(child.request_id, child.prompt_token_ids, output) for child in children]
    for ask in asks:
        engine.add(ask)
    peak = 0
    while engine.scheduler.has_unfinished():
        engine.step()
        peak = max(peak, engine.used_blocks)
    engine.close()
    # What a request has computed when it ends: its prompt and all its tokens but the last.
    cached = sum(outcome.cached_tokens for outcome in engine.outcomes.values())
    return Completions(
        computed=len(children),
        returned=n,
        child_requests=len(children),
        seeds=[child.seed for child in children],
        prompt_tokens_computed=len(children) * prompt - cached,
        prompt_tokens_cached=cached,
        generated_tokens=len(children) * output,
        steps=engine.num_steps,
        peak_blocks=peak,
        peak_blocks_unshared=len(children) * -(-(prompt + output - 1) // block_size),
    )
