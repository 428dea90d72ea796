from engine.core.hashing import BlockHasher, sha256
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@experiment("E07")
def hash_work(
    ctx: Context,
    requests: int = arg(20, 1, 100),
    prompt: int = arg(200, 1, 2000),
    output: int = arg(10, 1, 100),
    pool: int = arg(64, 20, 5000),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Count the hashes that prefix caching computes for requests that share nothing.

    `requests` different prompts of `prompt` tokens go through a pool of `pool` blocks, with and without caching.

    Returns:
        Requests without a common prefix, with the cache and without.
        digests [hashes]: sha256 calls for all prompts: the root and one per full block.
        bytes_hashed [bytes]
        hits, computed_with, computed_without [tokens]
        steps_with, steps_without [steps]
        refused_with, refused_without [steps]: Steps in which a request waited for blocks; cached blocks count as free,
            so both are equal.
    """
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
    return Result(
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
