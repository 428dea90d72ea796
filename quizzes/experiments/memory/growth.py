"""E06: when a growing request takes its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from pydantic import Field

from engine.core.blocks import Block, BlockEvent
from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.memory._shapes import BlockSize


@dataclass(frozen=True)
class Growth:
    """Of one request that runs alone. Step 0 computes the prompt and gives the first output token."""

    steps: Annotated[int, "steps"]
    held: Annotated[list[int], "blocks"]
    """In the forward pass of each step."""
    block_steps: Annotated[list[int], "step"]
    """Steps after the first that take a block."""
    peak_blocks: Annotated[int, "blocks"]
    kv_tokens: Annotated[int, "tokens"]
    """Written in all: the last output token is never computed."""
    reserved_blocks: Annotated[int, "blocks"]
    """That a reservation for max_model_len would hold from the start."""


@experiment("E06")
def growth(
    ctx: Context,
    *,
    prompt: Annotated[int, Field(ge=1, le=4000)] = 50,
    output: Annotated[int, Field(ge=1, le=1000)] = 20,
    block_size: BlockSize = 16,
    max_model_len: Annotated[int, Field(ge=1, le=200_000)] = 2048,
) -> Growth:
    """Blocks that one request holds, step by step, while it generates."""
    engine = ctx.core(block_size=block_size, num_blocks=prompt + output + 1, traced=True)
    taken: list[int] = []
    pool = engine.scheduler.kv.pool
    others = pool.on_event

    def count(kind: BlockEvent, block: Block, request_id: str | None) -> None:
        taken[-1] += kind == "alloc"
        if others is not None:
            others(kind, block, request_id)

    pool.on_event = count
    engine.add(Ask("r", prompt, output))
    written = 0
    while engine.scheduler.has_unfinished():
        taken.append(0)
        start, num_tokens = engine.step().rows["r"]
        written = start + num_tokens
    engine.close()
    return Growth(
        steps=engine.num_steps,
        held=list(accumulate(taken)),
        block_steps=[step for step, blocks in enumerate(taken) if blocks and step],
        peak_blocks=sum(taken),
        kv_tokens=written,
        reserved_blocks=-(-max_model_len // block_size),
    )


def chart(result: dict[str, list[int]]) -> dict[str, object]:
    """Blocks held in every step."""
    rows = [{"step": step, "blocks": blocks} for step, blocks in enumerate(result["held"])]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": rows},
        "mark": {"type": "line", "interpolate": "step-after"},
        "encoding": {
            "x": {"field": "step", "type": "quantitative"},
            "y": {"field": "blocks", "type": "quantitative"},
        },
    }
