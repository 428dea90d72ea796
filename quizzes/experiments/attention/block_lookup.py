from quizzes.experiments import Ask, BadArguments, Context, Result, arg, experiment

OUTPUT = 8
"""Long enough that no request has finished when the last one arrives."""


@experiment("E27")
def block_lookup(
    ctx: Context,
    prompts: list[int] = arg([40, 70, 33], 1, 4000, count=(1, 32)),
    finished: list[int] = arg([0], 0, 31, count=(0, 31)),
    last: int = arg(60, 1, 4000),
    block_size: int = arg(16, 1, 256),
    num_blocks: int = arg(256, 1, 10_000),
    position: int = arg(37, 0, 4000),
) -> Result:
    """Look up a position in a block table: block = table[i // block_size], offset = i % block_size.

    Several requests start together. After their first step the requests listed in `finished` are aborted, in that
    order; then the last one arrives and its table is read. Prefix caching is off: freed blocks are reused in order.

    Returns:
        table [block ids]: The last request's table: entry j holds the positions from j * block_size on.
        logical_block, physical_block
        offset [slots]
        slot [slot]: physical_block * block_size + offset: what slot_mapping holds for this position.
        is_contiguous: Whether the table's blocks lie side by side, in order.
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
    return Result(
        table=table,
        logical_block=logical,
        physical_block=table[logical],
        offset=offset,
        slot=table[logical] * block_size + offset,
        is_contiguous=table == list(range(table[0], table[0] + len(table))),
    )
