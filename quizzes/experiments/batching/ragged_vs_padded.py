from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E29")
def ragged_vs_padded(
    ctx: Context,
    lens: list[int] = arg([100, 500, 50], 1, 4000, count=(1, 64)),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Compare packed with padded prompts of different lengths: tokens computed and KV slots taken.

    The engine packs all rows into one list of tokens; `query_start_loc` gives the start of each. Nothing is padded, so
    only causality needs a mask.

    Returns:
        Figures of one prefill step of all prompts.
        ragged_tokens [tokens]: Positions that go through the model, as the scheduler plans them.
        padded_tokens [tokens]: The same in a rectangle: rows x longest.
        padding_share [share]: Padding over the rectangle.
        query_start_loc: Where each row begins in the packed batch, and where the last ends.
        blocks [blocks]: Blocks that each row holds.
        paged_slots [tokens]: KV slots taken: blocks x block size.
        padded_slots [tokens]: KV slots if each row had as many as the longest.
        unused_slots [tokens]: Empty slots at the ends of last blocks.
    """
    engine = ctx.core(
        max_num_seqs=len(lens), max_num_batched_tokens=sum(lens), block_size=block_size, traced=True
    )
    for index, length in enumerate(lens):
        engine.add(Ask(f"r{index}", length, 2))
    step = engine.step()
    starts = [0]
    for index in range(len(lens)):
        starts.append(starts[-1] + step.rows[f"r{index}"][1])
    blocks = [len(row.new_block_ids) for row in step.plan.scheduled]
    rectangle = len(lens) * max(lens)
    slots = sum(blocks) * block_size
    engine.close()
    return Result(
        ragged_tokens=step.num_tokens,
        padded_tokens=rectangle,
        padding_share=1 - step.num_tokens / rectangle,
        query_start_loc=starts,
        blocks=blocks,
        paged_slots=slots,
        padded_slots=len(lens) * max(blocks) * block_size,
        unused_slots=slots - step.num_tokens,
    )
