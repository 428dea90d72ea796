"""Blocks, block tables and holes, counted on the scheduler or the block manager."""

from itertools import pairwise
from typing import Any

from engine.core.blocks import BlockEvent, FreeQueue, add_listener
from engine.frontend.block_space_manager import AllocStatus, BlockSpaceManager
from quizzes.experiments import Ask, BadArguments, Context, Result, arg, experiment
from quizzes.experiments.charts import LINE, vega


@experiment("E06")
def blocks_for(
    ctx: Context,
    lens: list[int] = arg([100, 500, 50], 1, 20_000, count=(1, 64)),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Count the blocks that prompts of given lengths hold, and the slots that stay empty.

    Returns: All prompts admitted in one step, before any output: by request in the order given, and together.
        blocks [blocks]
        last_block_tokens [tokens]: Tokens in each request's last block.
        total_blocks [blocks]; total_tokens [tokens]; wasted_slots [slots]
        waste [share]: Wasted slots over slots taken.
        padded_slots [slots]: Slots if every request got as many as the longest.
        padded_waste [share]
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
    return Result(
        blocks=blocks,
        last_block_tokens=[n - (count - 1) * block_size for n, count in zip(lens, blocks, strict=True)],
        total_blocks=sum(blocks),
        total_tokens=total,
        wasted_slots=slots - total,
        waste=1 - total / slots,
        padded_slots=padded,
        padded_waste=1 - total / padded,
    )


@experiment("E06")
def block_size_sweep(
    ctx: Context,
    lens: list[int] = arg([37, 120, 260, 75, 500, 18], 1, 20_000, count=(1, 64)),
    block_sizes: list[int] = arg([1, 8, 16, 32, 64, 128], 1, 1024, count=(1, 10)),
    shared: int = arg(30, 0, 20_000),
) -> Result:
    """Sweep the block size: empty slots in last blocks, block-table entries and prefix hits.

    shared: tokens that a later request has in common with the first one, at most that one's length.

    Returns: One list entry per block size.
        block_sizes
        blocks [blocks]: Blocks of all requests, which is also the number of block-table entries.
        wasted_slots [slots]; waste [share]
        hit_tokens [tokens]: Tokens hit by a second request that shares `shared` tokens with the first of the list.
    """
    shared, total = min(shared, lens[0]), sum(lens)

    def fill(block_size: int) -> tuple[int, int]:
        """Return the blocks of all requests, and the hit of the later one."""
        engine = ctx.core(
            num_blocks=total + 4 * len(lens) + lens[0] + 4,
            block_size=block_size,
            max_num_batched_tokens=total + lens[0] + 2,
        )
        requests = [engine.add(Ask(f"r{i}", n, 3)) for i, n in enumerate(lens)]
        engine.step()
        blocks = sum(len(request.blocks) for request in requests)
        engine.add(Ask("again", [*requests[0].prompt_token_ids[:shared], -1, -2], 2))
        engine.step()
        return blocks, engine.outcomes["again"].cached_tokens

    blocks, hits = zip(*map(fill, block_sizes), strict=True)
    slots = [count * size for count, size in zip(blocks, block_sizes, strict=True)]
    return Result(
        block_sizes=list(block_sizes),
        blocks=blocks,
        wasted_slots=[taken - total for taken in slots],
        waste=[1 - total / taken for taken in slots],
        hit_tokens=hits,
    )


def block_size_sweep_chart(result: Result) -> dict[str, Any]:
    """Waste by block size."""
    return vega(
        {"block size": result.block_sizes, "waste": result.waste},
        LINE,
        x=("block size:Q", {"scale": {"type": "log", "base": 2}}),
        y=("waste:Q", {"axis": {"format": "%"}}),
    )


@experiment("E06")
def block_table(
    free_order: list[int] = arg([3, 7, 2, 15], 1, 1000, count=(1, 200)),
    tokens: int = arg(50, 1, 20_000),
    token: int = arg(35, 0, 20_000),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Find where a token's keys and values lie: block table, offset, slot.

    The sequence takes blocks from a free queue in this order. free_order: ids of the free blocks, next one first;
    there must be enough for `tokens`, and token < tokens.

    Returns: Figures of one token; everything counts from 0.
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


@experiment("E06")
def growth(
    ctx: Context,
    prompt: int = arg(50, 1, 4000),
    output: int = arg(20, 1, 1000),
    block_size: int = arg(16, 1, 1024),
    max_model_len: int = arg(2048, 1, 200_000),
) -> Result:
    """Show the blocks that one request holds, step by step, while it generates.

    Returns: One request runs alone. Step 0 computes the prompt and gives the first output token.
        steps [steps]
        held [blocks]: Blocks held in the forward pass of each step.
        block_steps [step]: Steps after the first that take a block.
        peak_blocks [blocks]
        kv_tokens [tokens]: Positions written; the last output token is never computed.
        reserved_blocks [blocks]: Blocks that a reservation for max_model_len would hold from the start.
    """
    engine = ctx.core(block_size=block_size, num_blocks=prompt + output + 1, traced=True)
    events: list[BlockEvent] = []
    add_listener(engine.scheduler.kv.pool, lambda kind, *_: events.append(kind))
    engine.add(Ask("r", prompt, output))
    held = []
    while engine.scheduler.has_unfinished():
        engine.step()
        held.append(events.count("alloc"))
    engine.close()
    start, num_tokens = engine.steps[-1].rows["r"]
    return Result(
        steps=engine.num_steps,
        held=held,
        block_steps=[step for step, (before, after) in enumerate(pairwise(held), 1) if after > before],
        peak_blocks=held[-1],
        kv_tokens=start + num_tokens,
        reserved_blocks=-(-max_model_len // block_size),
    )


def growth_chart(result: Result) -> dict[str, Any]:
    """Blocks held in every step."""
    columns = {"step": range(len(result.held)), "blocks": result.held}
    return vega(columns, {"type": "line", "interpolate": "step-after"}, x="step:Q", y="blocks:Q")


@experiment("E05")
def holes(
    hole_sizes: list[int] = arg([100, 80], 1, 20_000, count=(1, 32)),
    request: int = arg(150, 1, 100_000),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Decide whether a request fits into holes between other sequences: contiguous, and paged.

    Contiguous: into one hole. Paged: the engine's block manager gets as many free blocks as fit into the holes, each
    between blocks of sequences that stay.

    Returns:
        free_slots, largest_hole [slots]; contiguous_fits
        free_blocks [blocks]: Whole blocks in the holes: the free blocks of a paged pool with the same tokens in place.
        blocks_needed [blocks]; paged_fits
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
    needed = -(-request // block_size)
    return Result(
        free_slots=sum(hole_sizes),
        largest_hole=max(hole_sizes),
        contiguous_fits=max(hole_sizes) >= request,
        free_blocks=len(manager.device.free),
        blocks_needed=needed,
        paged_fits=manager.can_allocate(request) is AllocStatus.OK,
        paged_wasted_slots=needed * block_size - request,
    )


@experiment("E06")
def window_blocks(
    ctx: Context,
    window: int = arg(64, 1, 10_000),
    prompt: int = arg(200, 1, 10_000),
    output: int = arg(100, 2, 1000),
    chunk: int = arg(32, 1, 8192),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Count the blocks that a request holds when every layer sees only the last `window` positions.

    chunk: maximum tokens that a step computes. Blocks that have left the window are freed.

    Returns: One request runs alone; blocks are counted at the end of each step.
        peak_blocks [blocks]
        peak_blocks_full [blocks]: The same request in a model without a window.
        last_blocks [blocks]: Blocks after the last step but one.
        steps [steps]
    """

    def used(sliding_window: int | None) -> list[int]:
        engine = ctx.core(
            num_blocks=prompt + output + 8,
            block_size=block_size,
            max_num_batched_tokens=chunk,
            cache={"sliding_window": sliding_window},
            traced=sliding_window is not None,
        )
        engine.run([Ask("r", prompt, output)])
        return [engine.free_blocks - step.free_blocks for step in engine.steps]

    windowed, full = used(window), used(None)
    return Result(
        peak_blocks=max(windowed), peak_blocks_full=max(full), last_blocks=windowed[-2], steps=len(windowed)
    )
