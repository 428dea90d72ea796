"""E07: what the prefix cache does for requests that share nothing: hashes, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.core.hashing import BlockHasher, sha256
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@dataclass(frozen=True)
class HashWork:
    """Requests without a common prefix, with the cache and without."""

    digests: Annotated[int, "hashes"]
    """sha256 calls for all prompts: the root and one per full block."""
    bytes_hashed: Annotated[int, "bytes"]
    hits: Annotated[int, "tokens"]
    computed_with: Annotated[int, "tokens"]
    computed_without: Annotated[int, "tokens"]
    steps_with: Annotated[int, "steps"]
    steps_without: Annotated[int, "steps"]
    refused_with: Annotated[int, "steps"]
    """Steps in which somebody waited for blocks: cached blocks count as free, so as often as without."""
    refused_without: Annotated[int, "steps"]


@experiment("E07")
def hash_work(
    ctx: Context,
    *,
    requests: Annotated[int, Field(ge=1, le=100)] = 20,
    prompt: Annotated[int, Field(ge=1, le=2000)] = 200,
    output: Annotated[int, Field(ge=1, le=100)] = 10,
    pool: Annotated[int, Field(ge=20, le=5000)] = 64,
    block_size: Annotated[int, Field(ge=1, le=128)] = 16,
) -> HashWork:
    """`requests` prompts of `prompt` tokens, all different, through a pool of `pool` blocks, cached and not."""
    calls: list[int] = []

    def counted(data: bytes) -> bytes:
        calls.append(len(data))
        return sha256(data)

    fresh = Fresh()
    pool = max(pool, (prompt + output) // block_size + 1)
    asks = [Ask(f"r{index}", fresh(prompt), fresh(output)) for index in range(requests)]
    hasher = BlockHasher(block_size, digest=counted)
    for ask in asks:
        hasher.extend(Request(ask.request_id, ask.prompt_tokens(), SamplingParams(max_tokens=1)))
    engines = [
        ctx.core(
            block_size=block_size,
            num_blocks=pool,
            max_num_batched_tokens=prompt + requests,
            enable_prefix_caching=on,
            traced=on,
        ).run(asks)
        for on in (True, False)
    ]
    computed = [sum(outcome.computed_tokens for outcome in engine.outcomes.values()) for engine in engines]
    refused = [sum(bool(step.plan.not_scheduled) for step in engine.steps) for engine in engines]
    return HashWork(
        digests=len(calls),
        bytes_hashed=sum(calls),
        hits=sum(outcome.cached_tokens for outcome in engines[0].outcomes.values()),
        computed_with=computed[0],
        computed_without=computed[1],
        steps_with=engines[0].num_steps,
        steps_without=engines[1].num_steps,
        refused_with=refused[0],
        refused_without=refused[1],
    )
