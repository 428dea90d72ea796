from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E06")
def blocks_for(
    ctx: Context,
    lens: list[int] = arg([100, 500, 50], 1, 20_000, count=(1, 64)),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Count the blocks that prompts of given lengths hold, and the slots that stay empty.

    The scheduler admits all prompts in one step; block tables are counted before any output is added.

    Returns:
        By request in the order given, and together.
        blocks [blocks]
        last_block_tokens [tokens]: Tokens in each request's last block.
        total_blocks [blocks]
        total_tokens [tokens]
        wasted_slots [slots]
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
