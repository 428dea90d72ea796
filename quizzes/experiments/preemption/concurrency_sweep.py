from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E17")
def concurrency_sweep(
    ctx: Context,
    num_requests: int = arg(24, 1, 64),
    prompt: int = arg(32, 1, 500),
    output: int = arg(96, 2, 500),
    num_blocks: int = arg(40, 2, 2000),
    limits: list[int] = arg([2, 5, 8, 24], 1, 256, count=(1, 8)),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Sweep max_num_seqs beyond what memory can hold: preemptions, recomputed tokens, steps.

    All requests are present at the start. Prefix caching is off.

    Returns:
        By entry of `limits`.
        preemptions [preemptions]
        recomputed_tokens [tokens]
        total_steps [steps]
        best_limit: The max_num_seqs that computes the fewest positions, the largest among equals.
        safe_limit: Requests whose blocks all fit at their final length.
    """
    asks = [Ask(f"r{i}", prompt, output) for i in range(num_requests)]
    needed = num_requests * (prompt + output - 1)
    preemptions, recomputed, steps = [], [], []
    for limit in limits:
        engine = ctx.core(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=limit,
            enable_prefix_caching=False,
            traced=limit == max(limits),
        ).run(asks)
        preemptions.append(engine.num_preemptions)
        recomputed.append(sum(o.computed_tokens for o in engine.outcomes.values()) - needed)
        steps.append(engine.num_steps)
    fewest = min(recomputed)
    return Result(
        preemptions=preemptions,
        recomputed_tokens=recomputed,
        total_steps=steps,
        best_limit=max(limit for limit, count in zip(limits, recomputed, strict=True) if count == fewest),
        safe_limit=num_blocks // -(-(prompt + output - 1) // block_size),
    )
