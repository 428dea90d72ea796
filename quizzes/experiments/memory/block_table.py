"""E06: where a token's keys and values lie: block table, offset, slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.core.blocks import FreeQueue
from engine.frontend.block_space_manager import BlockSpaceManager
from quizzes.experiments import Context, experiment
from quizzes.experiments.memory._shapes import BlockSize
from quizzes.experiments.registry import BadArguments


@dataclass(frozen=True)
class Place:
    """Of one token; everything counts from 0."""

    table: list[int]
    """Physical block by logical block."""
    first_tokens: list[int]
    last_tokens: list[int]
    """First and last token of each logical block."""
    logical_block: int
    physical_block: int
    offset: int
    slot: Annotated[int, "slot"]
    """physical_block x block_size + offset: the row of the cache that the kernel writes."""


@experiment("E06")
def block_table(
    ctx: Context,
    *,
    free_order: Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(min_length=1, max_length=200)] = (
        3,
        7,
        2,
        15,
    ),
    tokens: Annotated[int, Field(ge=1, le=20_000)] = 50,
    token: Annotated[int, Field(ge=0, le=20_000)] = 35,
    block_size: BlockSize = 16,
) -> Place:
    """The block table of a sequence that takes blocks from a free queue in this order, and where one token is.

    free_order: ids of the free blocks, next one first. There must be enough of them for `tokens`, and token < tokens.
    """
    if len(set(free_order)) < len(free_order):
        raise BadArguments("free_order names a block twice")
    if token >= tokens:
        raise BadArguments(f"token {token} does not exist in a sequence of {tokens}; they count from 0")
    manager = BlockSpaceManager(max(free_order), 0, block_size)
    pool = manager.device
    for block in list(pool.free):
        pool.free.remove(block)
    pool.free = FreeQueue(pool.blocks[block_id] for block_id in free_order)
    manager.allocate("r", tokens)
    table = manager.block_table("r")
    logical, offset = divmod(token, block_size)
    firsts = [index * block_size for index in range(len(table))]
    return Place(
        table=table,
        first_tokens=firsts,
        last_tokens=[min(first + block_size, tokens) - 1 for first in firsts],
        logical_block=logical,
        physical_block=table[logical],
        offset=offset,
        slot=table[logical] * block_size + offset,
    )
