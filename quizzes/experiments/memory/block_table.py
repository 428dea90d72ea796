from engine.core.blocks import FreeQueue
from engine.frontend.block_space_manager import BlockSpaceManager
from quizzes.experiments import BadArguments, Context, Result, arg, experiment


@experiment("E06")
def block_table(
    ctx: Context,
    free_order: list[int] = arg([3, 7, 2, 15], 1, 1000, count=(1, 200)),
    tokens: int = arg(50, 1, 20_000),
    token: int = arg(35, 0, 20_000),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Find where a token's keys and values lie: block table, offset, slot.

    The sequence takes blocks from a free queue in this order. free_order: ids of the free blocks, next one first;
    there must be enough for `tokens`, and token < tokens.

    Returns:
        Figures of one token; everything counts from 0.
        table: Physical block by logical block.
        first_tokens
        last_tokens: First and last token of each logical block.
        logical_block, physical_block, offset
        slot [slot]: physical_block x block_size + offset: the row of the cache that the kernel writes.
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
    return Result(
        table=table,
        first_tokens=firsts,
        last_tokens=[min(first + block_size, tokens) - 1 for first in firsts],
        logical_block=logical,
        physical_block=table[logical],
        offset=offset,
        slot=table[logical] * block_size + offset,
    )
