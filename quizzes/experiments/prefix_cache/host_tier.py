from engine.config.cache import TierConfig
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh

BLOCK = 16


@experiment("E58")
def host_tier(
    ctx: Context,
    prompt_blocks: int = arg(6, 1, 40),
    others_blocks: int = arg(8, 0, 200),
    pool: int = arg(10, 2, 400),
    host_blocks: int = arg(32, 1, 800),
    block_bytes: int = arg(2 << 20, 1, 67_108_864),
) -> Result:
    """Offload evicted blocks to host memory and see where a later hit finds them.

    A prompt of `prompt_blocks` full blocks and one token is served, other requests take `others_blocks`, and the
    prompt comes back. The device has `pool` blocks, host memory `host_blocks`. The other requests have at most half
    the pool each.

    Returns:
        Figures of the returning request, with a host tier and without.
        device_tokens, host_tokens [tokens]
        computed_tokens, computed_without [tokens]: Prompt tokens computed with and without the tier.
        offloaded [blocks]: Blocks copied to the host by evictions.
        copied_in [blocks]
        bytes_in [bytes]: Bytes over the link for the returning request: blocks x bytes per block.
    """
    pool = max(pool, prompt_blocks + 1)
    shape = (prompt_blocks, others_blocks, pool, block_bytes)
    device, host, computed, (offloaded, copied_in, bytes_in) = _serve(ctx, host_blocks, *shape)
    _, _, without, _ = _serve(ctx, 0, *shape)
    return Result(
        device_tokens=device,
        host_tokens=host,
        computed_tokens=computed,
        computed_without=without,
        offloaded=offloaded,
        copied_in=copied_in,
        bytes_in=bytes_in,
    )


def _serve(
    ctx: Context, host_blocks: int, prompt_blocks: int, others_blocks: int, pool: int, block_bytes: int
) -> tuple[int, int, int, tuple[int, int, int]]:
    fresh = Fresh()
    tiers = TierConfig(host_blocks, offload=True, block_bytes=block_bytes) if host_blocks else TierConfig()
    engine = ctx.core(num_blocks=pool, block_size=BLOCK, tiers=tiers, traced=bool(host_blocks))
    prompt = fresh(prompt_blocks * BLOCK + 1)
    engine.run([Ask("first", prompt, fresh(1))])
    left, number = others_blocks, 0
    while left:
        blocks = min(left, max(1, pool // 2))
        engine.run([Ask(f"other{number}", fresh(blocks * BLOCK), fresh(1))])
        left, number = left - blocks, number + 1
    start = engine.num_steps
    request = engine.add(Ask("again", prompt, fresh(1)))
    engine.run()
    sources = request.cached_tokens_by_source
    back = [step.stats for step in engine.steps[start:]]
    flows = (
        sum(step.stats.num_blocks_offloaded for step in engine.steps),
        sum(stats.num_blocks_copied_in for stats in back),
        sum(stats.host_bytes_in for stats in back),
    )
    return sources.get("device", 0), sources.get("host", 0), engine.outcomes["again"].computed_tokens, flows
