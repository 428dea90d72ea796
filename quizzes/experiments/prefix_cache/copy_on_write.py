"""E09: who has to copy a shared block before writing, write by write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.frontend.block_space_manager import BlockSpaceManager
from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Writes:
    """One entry per write, in order."""

    owners_before: Annotated[list[int], "sequences"]
    """Tables that hold the writer's last block just before it writes."""
    copied: list[bool]
    """Whether that block was copied first."""
    opened: list[bool]
    """Whether the writer took an empty block instead, because its last one was full."""
    copies: Annotated[int, "blocks"]
    blocks_before: Annotated[int, "blocks"]
    """In use after the fork."""
    blocks_after: Annotated[int, "blocks"]


@experiment("E09")
def copy_on_write(
    ctx: Context,
    *,
    sequences: Annotated[int, Field(ge=1, le=16)] = 4,
    prompt: Annotated[int, Field(ge=1, le=2000)] = 20,
    writers: Annotated[list[Annotated[int, Field(ge=0, le=15)]], Field(min_length=1, max_length=64)] = (
        0,
        1,
        2,
        3,
    ),
    block_size: Annotated[int, Field(ge=1, le=128)] = 16,
) -> Writes:
    """A prompt forked into `sequences` sequences; then `writers` append one token each, in that order.

    A writer is a sequence's number from 0; numbers beyond the last sequence wrap round.
    """
    manager = BlockSpaceManager(sequences * (prompt + len(writers)), 0, block_size)
    manager.allocate(0, prompt)
    for child in range(1, sequences):
        manager.fork(0, child)
    before = manager.num_used_blocks
    owners, copied, opened = [], [], []
    for writer in (writer % sequences for writer in writers):
        tables = [manager.block_table(sequence) for sequence in range(sequences)]
        last = tables[writer][-1]
        owners.append(sum(last in table for table in tables))
        copied.append(manager.append_slot(writer) is not None)
        opened.append(len(manager.block_table(writer)) > len(tables[writer]))
    return Writes(owners, copied, opened, manager.num_copies, before, manager.num_used_blocks)
