from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@experiment("E57")
def window_blocks(
    ctx: Context,
    window: int = arg(64, 1, 4096),
    prompt: int = arg(400, 2, 8000),
    output: int = arg(40, 3, 500),
    chunk: int = arg(32, 1, 8192),
    block_size: int = arg(16, 1, 128),
    scan: int = arg(6, 0, 400),
) -> Result:
    """Count the blocks that a long request holds under a sliding window, and what a later hit finds.

    Every layer sees `window` positions; prompts are computed in chunks of `chunk` tokens.

    Returns:
        One long request, then the same prompt again.
        most_held [blocks]: Maximum blocks after a step, with the window.
        held_at_end [blocks]: Blocks after the last step but one.
        full_attention [blocks]: Maximum blocks if every layer sees everything.
        given_back [blocks]: Blocks freed while it ran.
        hit_tokens [tokens]: Hit when the prompt comes again.
        hit_after_scan [tokens]: Hit when it comes again after another request has overwritten `scan` blocks.
    """
    total = -(-(prompt + output) // block_size)
    held, given_back, (hit, hit_after_scan) = _serve(
        ctx, window, prompt, output, chunk, block_size, total + 2, scan
    )
    full, _, _ = _serve(ctx, None, prompt, output, chunk, block_size, total + 2, 0)
    return Result(
        most_held=max(held),
        held_at_end=held[-1],
        full_attention=max(full),
        given_back=given_back,
        hit_tokens=hit,
        hit_after_scan=hit_after_scan,
    )


def _serve(
    ctx: Context,
    window: int | None,
    prompt: int,
    output: int,
    chunk: int,
    block_size: int,
    pool: int,
    scan: int,
) -> tuple[list[int], int, tuple[int, int]]:
    """(blocks held after each step, blocks freed, hits of the second and the third time)."""
    fresh = Fresh()
    tokens = fresh(prompt)
    engine = ctx.core(
        num_blocks=pool,
        block_size=block_size,
        max_num_batched_tokens=chunk,
        max_num_seqs=1,
        cache={"sliding_window": window},
        traced=window is not None,
    )
    engine.add(Ask("long", tokens, fresh(output)))
    held = []
    while engine.scheduler.has_unfinished():
        engine.step()
        held.append(engine.used_blocks)
    given_back = sum(step.stats.num_blocks_behind_window for step in engine.steps)
    engine.run([Ask("again", tokens, fresh(1))])
    if scan:
        engine.run([Ask("scan", fresh(min(scan, pool) * block_size), fresh(1))])
    third = engine.add(Ask("third", tokens, fresh(1)))
    engine.run()
    hits = engine.outcomes["again"].cached_tokens, max(0, third.num_cached_tokens)
    return held[:-1], given_back, hits
