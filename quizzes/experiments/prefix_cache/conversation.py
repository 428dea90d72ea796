from typing import Any

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.charts import vega
from quizzes.experiments.prefix_cache._tokens import Fresh


@experiment("E07")
def conversation(
    ctx: Context,
    system: int = arg(200, 1, 8000),
    user: int = arg(30, 1, 2000),
    answer: int = arg(50, 1, 500),
    turns: int = arg(5, 1, 40),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Count the prefix-cache hits of a chat that sends its whole history in every turn.

    Every prompt is the previous prompt, its answer and a new question; no other request uses the cache. Lengths in
    tokens.

    Returns:
        One entry per turn.
        prompt_tokens [tokens]
        cached_tokens [tokens]: Prompt tokens found in the cache.
        computed_tokens [tokens]: Prompt tokens sent through the model.
        prefill_with_cache [tokens]
        prefill_without_cache [tokens]: All turns together, the second measured with enable_prefix_caching=False.
        saved [share]: Cached over all prompt tokens.
        hit_rate [share]: Cached tokens over prompt tokens, as vLLM's prefix_cache_hits / prefix_cache_queries.
    """
    cached, lengths = _play(ctx, True, system, user, answer, turns, block_size)
    none, _ = _play(ctx, False, system, user, answer, turns, block_size)
    computed = [length - hit for length, hit in zip(lengths, cached, strict=True)]
    return Result(
        prompt_tokens=lengths,
        cached_tokens=cached,
        computed_tokens=computed,
        prefill_with_cache=sum(computed),
        prefill_without_cache=sum(lengths) - sum(none),
        saved=sum(cached) / sum(lengths),
        hit_rate=sum(cached) / sum(lengths),
    )


def _play(
    ctx: Context, caching: bool, system: int, user: int, answer: int, turns: int, block_size: int
) -> tuple[list[int], list[int]]:
    num_blocks = (system + turns * (user + answer)) // block_size + 8
    engine = ctx.core(
        block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=caching, traced=caching
    )
    fresh = Fresh()
    history, lengths = fresh(system), []
    for turn in range(turns):
        prompt, reply = history + fresh(user), fresh(answer)
        engine.run([Ask(f"turn{turn}", prompt, reply)])
        lengths.append(len(prompt))
        history = prompt + reply
    return [engine.outcomes[f"turn{turn}"].cached_tokens for turn in range(turns)], lengths


def chart(result: Result) -> dict[str, Any]:
    """Prompt tokens by turn: found in the cache and computed."""
    values = [
        {"turn": turn, "tokens": tokens, "what": what}
        for what, column in (("cached", result.cached_tokens), ("computed", result.computed_tokens))
        for turn, tokens in enumerate(column, 1)
    ]
    return vega(values, "bar", x="turn:O", y="tokens:Q", color="what:N")
