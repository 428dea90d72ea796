from engine.frontend.block_space_manager import BlockSpaceManager
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E09")
def copy_on_write(
    ctx: Context,
    sequences: int = arg(4, 1, 16),
    prompt: int = arg(20, 1, 2000),
    writers: list[int] = arg([0, 1, 2, 3], 0, 15, count=(1, 64)),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Find which sequences copy a shared block before they write.

    A prompt is forked into `sequences` sequences; then `writers` append one token each, in that order. A writer is a
    sequence's number from 0; numbers beyond the last sequence wrap round.

    Returns:
        One entry per write, in order.
        owners_before [sequences]: Tables that hold the writer's last block just before it writes.
        copied: Whether that block was copied first.
        opened: Whether the writer took an empty block instead, because its last one was full.
        copies [blocks]
        blocks_before, blocks_after [blocks]: Blocks in use after the fork and after the writes.
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
    return Result(
        owners_before=owners,
        copied=copied,
        opened=opened,
        copies=manager.num_copies,
        blocks_before=before,
        blocks_after=manager.num_used_blocks,
    )
