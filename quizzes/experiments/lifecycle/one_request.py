"""E14: one request, every event: when blocks are taken, when the first token comes, how much KV there is at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.lifecycle._spy import Log, spying


@dataclass(frozen=True)
class Life:
    """A request alone in the engine. Steps count from 0."""

    first_step_events: list[str]
    """In the request's first step, in order. `forward` is the model; what stands before it is the scheduler's work."""
    lookup_before_forward: bool
    taken_in_forward: Annotated[int, "blocks"]
    """Blocks taken between the start of a forward pass and its end."""
    first_token: Annotated[int, "step"]
    total_steps: Annotated[int, "steps"]
    prefill_steps: Annotated[int, "steps"]
    """Until the first token, that step included."""
    alloc_steps: Annotated[list[int], "step"]
    """In which blocks were taken."""
    blocks_at_start: Annotated[int, "blocks"]
    """Owned after its first step."""
    blocks_at_end: Annotated[int, "blocks"]
    """Owned in its last step."""
    computed_tokens: Annotated[int, "tokens"]
    """Positions that went through the model."""
    kv_tokens_end: Annotated[int, "tokens"]
    """Positions whose KV existed when it ended; the last token was sampled and never computed."""
    cached_tokens: Annotated[int, "tokens"]
    output_tokens: Annotated[int, "tokens"]
    free_after: Annotated[int, "blocks"]
    still_cached: Annotated[int, "blocks"]
    """Of the free blocks, those that keep content somebody may hit."""


@experiment("E14")
def one_request(
    ctx: Context,
    *,
    prompt: Annotated[int, Field(ge=1, le=20_000)] = 50,
    output: Annotated[int, Field(ge=1, le=2000)] = 20,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
    budget: Annotated[int, Field(ge=1, le=16_384)] = 8192,
    shared: Annotated[int, Field(ge=0, le=20_000)] = 0,
) -> Life:
    """Run one request. `shared`: an earlier request had the same first tokens, and their blocks are cached."""
    log = Log()
    num_blocks = -(-(prompt + output) // block_size) * 2 + 16
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=budget,
        traced=True,
        make_scheduler=spying(log),
    )
    tokens = list(range(1, prompt + 1))
    shared = min(shared, prompt)
    if shared:
        engine.run([Ask("before", [*tokens[:shared], 10_000_000], 1)])
    log.entries.clear()
    begin = engine.num_steps
    before = engine.free_blocks
    engine.add(Ask("r", tokens, output))
    free, taken_at = before, []
    while engine.scheduler.has_unfinished():
        log.step = engine.num_steps - begin
        engine.step()
        if (log.step, "blocks_taken") in log.entries:
            taken_at.append(log.step)
        free = min(free, engine.free_blocks)
        if log.step == 0:
            at_start = num_blocks - engine.free_blocks
    engine.close()
    outcome = engine.outcomes["r"]
    first = [event for step, event in log.entries if step == 0]
    last = engine.steps[-1].rows["r"]
    return Life(
        first_step_events=first,
        lookup_before_forward=first.index("prefix_lookup") < first.index("forward"),
        taken_in_forward=sum(event == "blocks_taken" for event in first[first.index("forward") :]),
        first_token=outcome.token_steps[0] - begin,
        total_steps=engine.num_steps - begin,
        prefill_steps=outcome.token_steps[0] - begin + 1,
        alloc_steps=taken_at,
        blocks_at_start=at_start if output > 1 or taken_at != [0] else -(-prompt // block_size),
        blocks_at_end=-(-(last[0] + last[1]) // block_size),
        computed_tokens=outcome.computed_tokens,
        kv_tokens_end=last[0] + last[1],
        cached_tokens=outcome.cached_tokens,
        output_tokens=len(outcome.token_steps),
        free_after=engine.free_blocks,
        still_cached=engine.steps[-1].stats.num_evictable_blocks,
    )
