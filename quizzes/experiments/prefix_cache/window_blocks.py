"""E57: a model with a sliding window: blocks that a long request holds, and what a later hit needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@dataclass(frozen=True)
class WindowBlocks:
    """One long request, then the same prompt again."""

    most_held: Annotated[int, "blocks"]
    """After a step, with the window."""
    held_at_end: Annotated[int, "blocks"]
    """After its last step but one, when it generates token by token."""
    full_attention: Annotated[int, "blocks"]
    """Most held if every layer sees everything."""
    given_back: Annotated[int, "blocks"]
    """While it ran."""
    hit_tokens: Annotated[int, "tokens"]
    """When the prompt comes again."""
    hit_after_scan: Annotated[int, "tokens"]
    """When it comes again after another request has overwritten `scan` blocks."""


@experiment("E57")
def window_blocks(
    ctx: Context,
    *,
    window: Annotated[int, Field(ge=1, le=4096)] = 64,
    prompt: Annotated[int, Field(ge=2, le=8000)] = 400,
    output: Annotated[int, Field(ge=3, le=500)] = 40,
    chunk: Annotated[int, Field(ge=1, le=8192)] = 32,
    block_size: Annotated[int, Field(ge=1, le=128)] = 16,
    scan: Annotated[int, Field(ge=0, le=400)] = 6,
) -> WindowBlocks:
    """Blocks of a request where every layer sees `window` positions, computed in chunks of `chunk` tokens."""
    total = -(-(prompt + output) // block_size)
    held, given_back, hits = _serve(ctx, window, prompt, output, chunk, block_size, total + 2, scan)
    full, _, _ = _serve(ctx, None, prompt, output, chunk, block_size, total + 2, 0)
    return WindowBlocks(max(held), held[-1], max(full), given_back, *hits)


def _serve(
    ctx: Context,
    window: int | None,
    prompt: int,
    output: int,
    chunk: int,
    block_size: int,
    pool: int,
    scan: int,
) -> tuple[list[int], int, tuple[int, int]]:
    """(blocks held after each step, blocks given back, hits of the second and the third time)."""
    fresh = Fresh()
    tokens = fresh(prompt)
    engine = ctx.core(
        num_blocks=pool,
        block_size=block_size,
        max_num_batched_tokens=chunk,
        max_num_seqs=1,
        cache={"sliding_window": window},
        traced=window is not None,
    )
    engine.add(Ask("long", tokens, fresh(output)))
    held = []
    while engine.scheduler.has_unfinished():
        engine.step()
        held.append(engine.used_blocks)
    given_back = sum(step.stats.num_blocks_behind_window for step in engine.steps)
    engine.run([Ask("again", tokens, fresh(1))])
    if scan:
        engine.run([Ask("scan", fresh(min(scan, pool) * block_size), fresh(1))])
    third = engine.add(Ask("third", tokens, fresh(1)))
    engine.run()
    hits = engine.outcomes["again"].cached_tokens, max(0, third.num_cached_tokens)
    return held[:-1], given_back, hits
