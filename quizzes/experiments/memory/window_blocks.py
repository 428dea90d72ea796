"""E06: blocks of a request in a model with a sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.memory._shapes import BlockSize


@dataclass(frozen=True)
class Window:
    """Of one request that runs alone; counted when a step has ended."""

    peak_blocks: Annotated[int, "blocks"]
    peak_blocks_full: Annotated[int, "blocks"]
    """The same request in a model without a window."""
    last_blocks: Annotated[int, "blocks"]
    """After the step before the last one."""
    steps: Annotated[int, "steps"]


@experiment("E06")
def window_blocks(
    ctx: Context,
    *,
    window: Annotated[int, Field(ge=1, le=10_000)] = 64,
    prompt: Annotated[int, Field(ge=1, le=10_000)] = 200,
    output: Annotated[int, Field(ge=2, le=1000)] = 100,
    chunk: Annotated[int, Field(ge=1, le=8192)] = 32,
    block_size: BlockSize = 16,
) -> Window:
    """How many blocks a request owns when every layer sees only the last `window` positions.

    chunk: most tokens that a step computes, of the prompt too. Blocks that nobody can see any more go back.
    """

    def used(sliding_window: int | None) -> list[int]:
        engine = ctx.core(
            num_blocks=prompt + output + 8,
            block_size=block_size,
            max_num_batched_tokens=chunk,
            cache={"sliding_window": sliding_window},
            traced=sliding_window is not None,
        )
        engine.run([Ask("r", prompt, output)])
        total = engine.free_blocks
        return [total - step.free_blocks for step in engine.steps]

    windowed, full = used(window), used(None)
    return Window(max(windowed), max(full), windowed[-2], len(windowed))
