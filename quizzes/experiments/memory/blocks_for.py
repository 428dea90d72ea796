"""E06: how many blocks requests of given lengths hold, and how many of their slots stay empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.memory._shapes import BlockSize, Lengths


@dataclass(frozen=True)
class Blocks:
    """By request in the order given, and together."""

    blocks: Annotated[list[int], "blocks"]
    last_block_tokens: Annotated[list[int], "tokens"]
    """In each request's last block."""
    total_blocks: Annotated[int, "blocks"]
    total_tokens: Annotated[int, "tokens"]
    wasted_slots: Annotated[int, "slots"]
    waste: Annotated[float, "share"]
    """Of the slots taken."""
    padded_slots: Annotated[int, "slots"]
    """If every request got as many slots as the longest."""
    padded_waste: Annotated[float, "share"]


@experiment("E06")
def blocks_for(ctx: Context, *, lens: Lengths = (100, 500, 50), block_size: BlockSize = 16) -> Blocks:
    """Blocks that prompts of these lengths hold once the engine has computed them.

    The scheduler admits all of them in one step; the KV manager's block tables are counted before any output is added.
    """
    total = sum(lens)
    engine = ctx.core(
        num_blocks=total + len(lens), block_size=block_size, max_num_batched_tokens=total, traced=True
    )
    requests = [engine.add(Ask(f"r{i}", n, 2)) for i, n in enumerate(lens)]
    engine.step()
    blocks = [len(request.blocks) for request in requests]
    engine.close()
    slots = sum(blocks) * block_size
    padded = max(lens) * len(lens)
    return Blocks(
        blocks=blocks,
        last_block_tokens=[n - (count - 1) * block_size for n, count in zip(lens, blocks, strict=True)],
        total_blocks=sum(blocks),
        total_tokens=total,
        wasted_slots=slots - total,
        waste=1 - total / slots,
        padded_slots=padded,
        padded_waste=1 - total / padded,
    )
