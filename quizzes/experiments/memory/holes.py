"""E05: free memory in pieces, and a request that needs one piece, or any blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.frontend.block_space_manager import AllocStatus, BlockSpaceManager
from quizzes.experiments import Context, experiment
from quizzes.experiments.memory._shapes import BlockSize

Runs = Annotated[list[Annotated[int, Field(ge=1, le=20_000)]], Field(min_length=1, max_length=32)]


@dataclass(frozen=True)
class Fit:
    """Of one request."""

    free_slots: Annotated[int, "slots"]
    largest_hole: Annotated[int, "slots"]
    contiguous_fits: bool
    free_blocks: Annotated[int, "blocks"]
    """Whole blocks in the holes: what a paged pool would have free with the same tokens in place."""
    blocks_needed: Annotated[int, "blocks"]
    paged_fits: bool
    paged_wasted_slots: Annotated[int, "slots"]
    """In its last block."""


@experiment("E05")
def holes(
    ctx: Context,
    *,
    hole_sizes: Runs = (100, 80),
    request: Annotated[int, Field(ge=1, le=100_000)] = 150,
    block_size: BlockSize = 16,
) -> Fit:
    """Whether a request of `request` tokens fits into holes between other sequences.

    Contiguous: into one hole. Paged: the engine's block manager gets as many free blocks as fit into the holes, each
    between blocks of sequences that stay.
    """
    counts = [size // block_size for size in hole_sizes]
    manager = BlockSpaceManager(sum(counts) + len(counts), 0, block_size)
    for index, count in enumerate(counts):
        manager.allocate(f"stays-{index}", block_size)
        if count:
            manager.allocate(f"goes-{index}", count * block_size)
    for index, count in enumerate(counts):
        if count:
            manager.free(f"goes-{index}")
    free_blocks = len(manager.device.free)
    fits = manager.can_allocate(request) is AllocStatus.OK
    needed = -(-request // block_size)
    if fits:
        manager.allocate("new", request)
        needed = len(manager.block_table("new"))
    return Fit(
        free_slots=sum(hole_sizes),
        largest_hole=max(hole_sizes),
        contiguous_fits=max(hole_sizes) >= request,
        free_blocks=free_blocks,
        blocks_needed=needed,
        paged_fits=fits,
        paged_wasted_slots=needed * block_size - request,
    )
