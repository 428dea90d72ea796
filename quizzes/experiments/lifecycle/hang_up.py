"""E66: the client goes away: before its request starts, in the middle of the prompt, in the middle of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class HangUp:
    """Request r0 is aborted before step `at_step`; r1 waits for its memory."""

    state: str
    """Of r0 at that moment: waiting, prefill or decode."""
    blocks_before: Annotated[int, "blocks"]
    """In use just before the abort."""
    blocks_after: Annotated[int, "blocks"]
    """Just after."""
    freed: Annotated[int, "blocks"]
    wasted_tokens: Annotated[int, "tokens"]
    """Positions that were computed for r0."""
    streamed_tokens: Annotated[int, "tokens"]
    next_started: Annotated[int, "step"]
    """The step that ran r1 first."""
    next_would_start: Annotated[int, "step"]
    """Had r0 not been aborted."""
    saved_tokens: Annotated[int, "tokens"]
    """Positions that r0 would still have computed."""


@experiment("E66")
def hang_up(
    ctx: Context,
    *,
    prompt: Annotated[int, Field(ge=1, le=4000)] = 100,
    output: Annotated[int, Field(ge=2, le=1000)] = 80,
    at_step: Annotated[int, Field(ge=0, le=1000)] = 20,
    num_blocks: Annotated[int, Field(ge=2, le=1000)] = 12,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
    budget: Annotated[int, Field(ge=1, le=8192)] = 8192,
) -> HangUp:
    """r0 has the engine to itself; r1 is like it, comes at step 1 and does not fit beside it."""
    settings = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_num_batched_tokens": budget,
        "enable_prefix_caching": False,
    }
    asks = [Ask("r0", prompt, output), Ask("r1", prompt, output, arrival=1)]
    patient = ctx.core(**settings).run(asks)

    engine = ctx.core(traced=True, **settings)
    engine.add(asks[0])
    while engine.num_steps < at_step and engine.scheduler.has_unfinished():
        engine.step()
        if engine.num_steps == 1:
            engine.add(asks[1])
    outcome = engine.outcomes["r0"]
    state = "decode" if outcome.token_steps else "prefill" if outcome.computed_tokens else "waiting"
    before = engine.used_blocks
    engine.abort("r0")
    after = engine.used_blocks
    if "r1" not in engine.outcomes:
        engine.add(asks[1])
    engine.run()
    return HangUp(
        state="finished" if outcome.finished is not None else state,
        blocks_before=before,
        blocks_after=after,
        freed=before - after,
        wasted_tokens=outcome.computed_tokens,
        streamed_tokens=len(outcome.token_steps),
        next_started=engine.outcomes["r1"].admitted,
        next_would_start=patient.outcomes["r1"].admitted,
        saved_tokens=prompt + output - 1 - outcome.computed_tokens,
    )
