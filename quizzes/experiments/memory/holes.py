from engine.frontend.block_space_manager import AllocStatus, BlockSpaceManager
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E05")
def holes(
    ctx: Context,
    hole_sizes: list[int] = arg([100, 80], 1, 20_000, count=(1, 32)),
    request: int = arg(150, 1, 100_000),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Decide whether a request fits into holes between other sequences: contiguous, and paged.

    Contiguous: into one hole. Paged: the engine's block manager gets as many free blocks as fit into the holes, each
    between blocks of sequences that stay.

    Returns:
        free_slots, largest_hole [slots]
        contiguous_fits
        free_blocks [blocks]: Whole blocks in the holes: the free blocks of a paged pool with the same tokens in place.
        blocks_needed [blocks]
        paged_fits
        paged_wasted_slots [slots]: Empty slots in its last block.
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
    return Result(
        free_slots=sum(hole_sizes),
        largest_hole=max(hole_sizes),
        contiguous_fits=max(hole_sizes) >= request,
        free_blocks=free_blocks,
        blocks_needed=needed,
        paged_fits=fits,
        paged_wasted_slots=needed * block_size - request,
    )
