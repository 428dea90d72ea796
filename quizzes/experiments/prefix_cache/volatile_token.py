from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@experiment("E08")
def volatile_token(
    ctx: Context,
    prompt: int = arg(512, 2, 8000),
    position: int = arg(0, 0, 7999),
    requests: int = arg(4, 2, 50),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Measure how the position of one volatile token limits the prefix hit.

    The same prompt of `prompt` tokens repeats, except for the token at `position` (0 is the first). A position at or
    after the end of the prompt changes nothing.

    Returns:
        Hits of the second and all later requests; the first finds an empty cache.
        hit_tokens [tokens]: Per request.
        hit_if_stable [tokens]: Per request, if the token did not change.
        lost_tokens [tokens]: Computed again in every request because of that one token.
        hit_rate [share]: Hit rate of all requests, the cold first one included.
    """
    hits = _hits(ctx, prompt, position, requests, block_size)
    stable = _hits(ctx, prompt, prompt, 2, block_size)[1]
    return Result(
        hit_tokens=hits[1],
        hit_if_stable=stable,
        lost_tokens=stable - hits[1],
        hit_rate=sum(hits) / (requests * prompt),
    )


def _hits(ctx: Context, prompt: int, position: int, requests: int, block_size: int) -> list[int]:
    fresh = Fresh()
    tokens = fresh(prompt)
    engine = ctx.core(
        block_size=block_size,
        num_blocks=requests * (prompt // block_size + 2),
        traced=True,
        max_num_batched_tokens=prompt,
    )
    for index in range(requests):
        if position < prompt:
            tokens[position : position + 1] = fresh(1)
        engine.run([Ask(f"r{index}", list(tokens), fresh(1))])
    return [engine.outcomes[f"r{index}"].cached_tokens for index in range(requests)]
