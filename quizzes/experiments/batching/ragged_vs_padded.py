"""E29: a batch of prompts of different lengths, packed one behind the other or padded to the longest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Tokens:
    """What one prefill step of all prompts computes and holds."""

    ragged_tokens: Annotated[int, "tokens"]
    """Positions that go through the model, as the scheduler plans them."""
    padded_tokens: Annotated[int, "tokens"]
    """The same in a rectangle: rows x longest."""
    padding_share: Annotated[float, "share"]
    """Of the rectangle."""
    query_start_loc: list[int]
    """Where each row begins in the packed batch, and where the last ends."""
    blocks: Annotated[list[int], "blocks"]
    """That each row holds."""
    paged_slots: Annotated[int, "tokens"]
    """KV slots taken: blocks x block size."""
    padded_slots: Annotated[int, "tokens"]
    """If each row had as many as the longest."""
    unused_slots: Annotated[int, "tokens"]
    """Of the paged ones: the tails of last blocks."""


@experiment("E29")
def ragged_vs_padded(
    ctx: Context,
    *,
    lens: Annotated[list[Annotated[int, Field(ge=1, le=4000)]], Field(min_length=1, max_length=64)] = (
        100,
        500,
        50,
    ),
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
) -> Tokens:
    """Tokens and KV slots of a batch of prompts: ragged as the engine has it, and padded.

    The engine packs all rows into one list of tokens; `query_start_loc` says where each begins. Nothing is padded, so
    a mask is needed for causality alone.
    """
    engine = ctx.core(
        max_num_seqs=len(lens), max_num_batched_tokens=sum(lens), block_size=block_size, traced=True
    )
    for index, length in enumerate(lens):
        engine.add(Ask(f"r{index}", length, 2))
    step = engine.step()
    starts = [0]
    for index in range(len(lens)):
        starts.append(starts[-1] + step.rows[f"r{index}"][1])
    blocks = [len(row.new_block_ids) for row in step.plan.scheduled]
    rectangle = len(lens) * max(lens)
    slots = sum(blocks) * block_size
    engine.close()
    return Tokens(
        step.num_tokens,
        rectangle,
        1 - step.num_tokens / rectangle,
        starts,
        blocks,
        slots,
        len(lens) * max(blocks) * block_size,
        slots - step.num_tokens,
    )
