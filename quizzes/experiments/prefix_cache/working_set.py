from random import Random
from typing import Literal

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@experiment("E11")
def working_set(
    ctx: Context,
    prefixes: int = arg(8, 1, 40),
    blocks_each: int = arg(4, 1, 32),
    pool: int = arg(40, 4, 2000),
    rounds: int = arg(4, 1, 12),
    visits: Literal["cyclic", "random"] = "cyclic",
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Visit more prefixes than fit into the cache, in turn or at random, and measure the hit rate of LRU.

    `prefixes` prompts of `blocks_each` full blocks, each sent once, then `rounds` times as many visits. cyclic: always
    in the same order. random: uniform draws. Each prompt ends in one more token, so a visit needs one block more than
    the prefix, and that block is never cached.

    Returns:
        Over all visits after the first one of each prefix.
        hit_rate [share]: Hit tokens over the prefixes' tokens.
        evictions [blocks]
        working_set [blocks]: Blocks of all prefixes together.
        pool [blocks]
    """
    fresh, size = Fresh(), 16
    pool = max(pool, blocks_each + 1)
    prompts = [fresh(blocks_each * size + 1) for _ in range(prefixes)]
    engine = ctx.core(block_size=size, num_blocks=pool, traced=True)
    draws = visit_order(prefixes, rounds, visits, seed)
    for number, index in enumerate([*range(prefixes), *draws]):
        engine.run([Ask(f"v{number}", prompts[index], fresh(1))])
    hits = sum(
        engine.outcomes[f"v{number}"].cached_tokens for number in range(prefixes, prefixes + len(draws))
    )
    return Result(
        hit_rate=hits / (len(draws) * blocks_each * size),
        evictions=engine.scheduler.kv.pool.num_evictions,
        working_set=prefixes * blocks_each,
        pool=pool,
    )


def visit_order(prefixes: int, rounds: int, visits: str, seed: int) -> list[int]:
    """Yield the prefixes visited after the first round."""
    rng = Random(seed)
    if visits == "cyclic":
        return list(range(prefixes)) * rounds
    return [rng.randrange(prefixes) for _ in range(prefixes * rounds)]
