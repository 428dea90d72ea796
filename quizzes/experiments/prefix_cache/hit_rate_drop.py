from typing import Literal

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh

Cause = Literal["healthy", "template", "eviction", "routing", "short_chats"]
BLOCK = 16


@experiment("E47", "E52")
def hit_rate_drop(
    ctx: Context,
    cause: Cause = "healthy",
    sessions: int = arg(8, 2, 16),
    turns: int = arg(5, 2, 10),
    system: int = arg(320, 16, 2000),
    turn: int = arg(80, 2, 400),
    replicas: int = arg(8, 2, 12),
) -> Result:
    """Produce a low hit rate in several ways and find the metrics that tell them apart.

    A chat service with one fault: a request id at the start of the template, a small pool, round-robin routing over
    replicas, or different traffic of one-question chats. Sessions take turns; each sends the system prompt, its
    history and a new turn of `turn` tokens (half of it the answer).

    Returns:
        Figures as on a dashboard.
        hit_rate [share]: Cached over prompt tokens, all replicas.
        hit_share [share]: Requests with any hit over all requests.
        evictions [blocks]
        prompt_mean [tokens]
        misses_at_start [share]: Requests that do not even hit their first block.
    """
    fresh = Fresh()
    longest = system + turns * turn
    blocks_each = longest // BLOCK + 2
    num_blocks = (
        (blocks_each + sessions) if cause == "eviction" else (replicas + sessions) * turns * blocks_each
    )
    engines = [
        ctx.core(num_blocks=num_blocks, block_size=BLOCK, max_num_batched_tokens=longest, traced=True)
        for _ in range(replicas if cause == "routing" else 1)
    ]
    instructions = fresh(system)
    histories: list[list[int]] = [[] for _ in range(sessions)]
    cached, lengths, sent = [], [], 0
    for _ in range(turns):
        for session in range(sessions):
            question, answer = fresh(turn - turn // 2), fresh(turn // 2)
            if cause == "short_chats":
                histories[session] = []
                question = fresh(longest)[: 2 * system]
            stamp = fresh(1) if cause == "template" else []
            prompt = [*stamp, *instructions, *histories[session], *question]
            # Shift by one per round; otherwise sessions stay on one replica if they are as many as replicas.
            engine = engines[(sent + sent // sessions) % len(engines)]
            engine.run([Ask(f"r{sent}", prompt, answer)])
            cached.append(engine.outcomes[f"r{sent}"].cached_tokens)
            lengths.append(len(prompt))
            histories[session] = [*histories[session], *question, *answer]
            sent += 1
    return Result(
        hit_rate=sum(cached) / sum(lengths),
        hit_share=sum(hit > 0 for hit in cached) / sent,
        evictions=sum(engine.scheduler.kv.pool.num_evictions for engine in engines),
        prompt_mean=sum(lengths) / sent,
        misses_at_start=sum(hit == 0 for hit in cached) / sent,
    )
