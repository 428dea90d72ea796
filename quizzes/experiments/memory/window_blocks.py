from quizzes.experiments import Ask, Context, Result, arg, experiment


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

    Returns:
        One request runs alone; blocks are counted at the end of each step.
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
        total = engine.free_blocks
        return [total - step.free_blocks for step in engine.steps]

    windowed, full = used(window), used(None)
    return Result(
        peak_blocks=max(windowed), peak_blocks_full=max(full), last_blocks=windowed[-2], steps=len(windowed)
    )
