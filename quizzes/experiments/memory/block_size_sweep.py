"""E06: one list of lengths, several block sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.memory._shapes import BlockSize, Lengths


@dataclass(frozen=True)
class Sweep:
    """One list entry per block size."""

    block_sizes: list[int]
    blocks: Annotated[list[int], "blocks"]
    """Also the entries of all block tables together."""
    wasted_slots: Annotated[list[int], "slots"]
    waste: Annotated[list[float], "share"]
    hit_tokens: Annotated[list[int], "tokens"]
    """Found in the prefix cache by a second request that shares `shared` tokens with the first of the list."""


@experiment("E06")
def block_size_sweep(
    ctx: Context,
    *,
    lens: Lengths = (37, 120, 260, 75, 500, 18),
    block_sizes: Annotated[list[BlockSize], Field(min_length=1, max_length=10)] = (1, 8, 16, 32, 64, 128),
    shared: Annotated[int, Field(ge=0, le=20_000)] = 30,
) -> Sweep:
    """Slots that stay empty in last blocks, length of the block tables, and prefix hits, by block size.

    shared: how many tokens a later request has in common with the first one; at most that one's length.
    """
    shared = min(shared, lens[0])
    rows = [_with(ctx, lens, block_size, shared) for block_size in block_sizes]
    total = sum(lens)
    slots = [blocks * size for (blocks, _), size in zip(rows, block_sizes, strict=True)]
    return Sweep(
        block_sizes=list(block_sizes),
        blocks=[blocks for blocks, _ in rows],
        wasted_slots=[taken - total for taken in slots],
        waste=[1 - total / taken for taken in slots],
        hit_tokens=[hit for _, hit in rows],
    )


def _with(ctx: Context, lens: list[int], block_size: int, shared: int) -> tuple[int, int]:
    total = sum(lens)
    engine = ctx.core(
        num_blocks=total + 4 * len(lens) + lens[0] + 4,
        block_size=block_size,
        max_num_batched_tokens=total + lens[0] + 2,
    )
    requests = [engine.add(Ask(f"r{i}", n, 3)) for i, n in enumerate(lens)]
    engine.step()
    blocks = sum(len(request.blocks) for request in requests)
    first = requests[0].prompt_token_ids
    engine.add(Ask("again", [*first[:shared], -1, -2], 2))
    engine.step()
    return blocks, engine.outcomes["again"].cached_tokens


def chart(result: dict[str, list[float]]) -> dict[str, object]:
    """Waste by block size."""
    rows = [
        {"block size": size, "waste": waste}
        for size, waste in zip(result["block_sizes"], result["waste"], strict=True)
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": rows},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "block size", "type": "quantitative", "scale": {"type": "log", "base": 2}},
            "y": {"field": "waste", "type": "quantitative", "axis": {"format": "%"}},
        },
    }
