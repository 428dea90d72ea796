"""E27: where the scheduler's block table puts a position: block = table[i // block_size], offset = i % block_size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.registry import BadArguments

OUTPUT = 8
"""Nobody is finished when the last request comes."""


@dataclass(frozen=True)
class Lookup:
    table: Annotated[list[int], "block ids"]
    """Of the last request: entry j holds positions j * block_size and on."""
    logical_block: int
    physical_block: int
    offset: Annotated[int, "slots"]
    slot: Annotated[int, "slot"]
    """physical_block * block_size + offset: what slot_mapping holds for this position."""
    is_contiguous: bool
    """Whether the table's blocks lie side by side, in order."""


@experiment("E27")
def block_lookup(
    ctx: Context,
    *,
    prompts: Annotated[list[Annotated[int, Field(ge=1, le=4000)]], Field(min_length=1, max_length=32)] = (
        40,
        70,
        33,
    ),
    finished: Annotated[list[Annotated[int, Field(ge=0, le=31)]], Field(max_length=31)] = (0,),
    last: Annotated[int, Field(ge=1, le=4000)] = 60,
    block_size: Annotated[int, Field(ge=1, le=256)] = 16,
    num_blocks: Annotated[int, Field(ge=1, le=10_000)] = 256,
    position: Annotated[int, Field(ge=0, le=4000)] = 37,
) -> Lookup:
    """The block table of a request that came last, and one of its positions in it.

    The others come together, in order; after their first step some are aborted, then the last one comes. `finished`:
    indices of the aborted ones, in order. Prefix caching is off: freed blocks are reused as they come.
    """
    if position >= last:
        raise BadArguments(f"position {position} is beyond the last request's {last} tokens")
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching=False,
        max_num_batched_tokens=200_000,
    )
    for index, prompt in enumerate(prompts):
        engine.add(Ask(f"r{index}", prompt, output=OUTPUT))
    engine.step()
    engine.abort(*(f"r{index}" for index in finished))
    request = engine.add(Ask("last", last, output=OUTPUT))
    engine.step()
    table = [block.block_id for block in request.blocks]
    if not table:
        raise BadArguments(f"the last request does not fit into {num_blocks} blocks beside the others")
    logical, offset = divmod(position, block_size)
    return Lookup(
        table=table,
        logical_block=logical,
        physical_block=table[logical],
        offset=offset,
        slot=table[logical] * block_size + offset,
        is_contiguous=table == list(range(table[0], table[0] + len(table))),
    )
