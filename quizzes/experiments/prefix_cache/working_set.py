"""E11: more prefixes than fit, visited in turn or at random: the hit rate of LRU."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@dataclass(frozen=True)
class WorkingSet:
    """Over all visits after each prefix was seen once."""

    hit_rate: Annotated[float, "share"]
    """Of the prefixes' tokens."""
    evictions: Annotated[int, "blocks"]
    working_set: Annotated[int, "blocks"]
    """Blocks of all prefixes together."""
    pool: Annotated[int, "blocks"]


@experiment("E11")
def working_set(
    ctx: Context,
    *,
    prefixes: Annotated[int, Field(ge=1, le=40)] = 8,
    blocks_each: Annotated[int, Field(ge=1, le=32)] = 4,
    pool: Annotated[int, Field(ge=4, le=2000)] = 40,
    rounds: Annotated[int, Field(ge=1, le=12)] = 4,
    visits: Literal["cyclic", "random"] = "cyclic",
    seed: Annotated[int, Field(ge=0, le=10_000)] = 0,
) -> WorkingSet:
    """`prefixes` prompts of `blocks_each` full blocks, each asked once, then `rounds` times as many visits.

    cyclic: one after the other, always in the same order. random: uniform draws. Each prompt ends in one more token,
    so a visit needs one block more than the prefix, and that block is never cached.
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
    return WorkingSet(
        hit_rate=hits / (len(draws) * blocks_each * size),
        evictions=engine.scheduler.kv.pool.num_evictions,
        working_set=prefixes * blocks_each,
        pool=pool,
    )


def visit_order(prefixes: int, rounds: int, visits: str, seed: int) -> list[int]:
    """Which prefix is asked for, after the first round."""
    rng = Random(seed)
    if visits == "cyclic":
        return list(range(prefixes)) * rounds
    return [rng.randrange(prefixes) for _ in range(prefixes * rounds)]
