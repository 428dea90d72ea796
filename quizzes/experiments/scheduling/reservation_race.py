from random import Random
from typing import Any

from quizzes.experiments import Ask, BadArguments, Context, CoreEngine, Result, arg, experiment
from quizzes.experiments.scheduling._reserve import ReservingScheduler


@experiment("E16", "E05")
def reservation_race(
    ctx: Context,
    blocks: int = arg(300, 50, 2000),
    requests: int = arg(80, 1, 200),
    prompt: int = arg(60, 1, 500),
    mean_output: int = arg(60, 1, 200),
    max_tokens: int = arg(400, 1, 700),
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Compare reserving KV for max_tokens at the start with allocating blocks as tokens come.

    Outputs are exponential with the given mean, cut at max_tokens. Reserved: a request starts when its prompt and all
    of max_tokens fit. Paged: the engine's scheduler. All steps count the same.

    Returns:
        The same requests both ways, all waiting at the start.
        reserved_running, paged_running [requests]: Requests that computed, per step.
        concurrency [x]: Paged over reserved.
        reserved_p99, paged_p99 [steps]: Latency from the start to the last token, 99th percentile.
        p99_reduction [share]
        preemptions: Paged; the other cannot have any.
    """
    if prompt + max_tokens > 16 * blocks:
        raise BadArguments(
            f"one request of {prompt} + {max_tokens} tokens must fit into {blocks} blocks of 16"
        )
    rng = Random(f"reservation-{seed}")
    asks = [
        Ask(
            f"r{i}", prompt, min(max_tokens, 1 + int(rng.expovariate(1 / mean_output))), max_tokens=max_tokens
        )
        for i in range(requests)
    ]
    settings: dict[str, Any] = {"num_blocks": blocks, "max_num_batched_tokens": 100_000, "max_num_seqs": 256}
    reserved = ctx.core(make_scheduler=ReservingScheduler, **settings).run(asks)
    paged = ctx.core(traced=True, **settings).run(asks)
    at = max(0, -(-99 * requests // 100) - 1)
    ends = [sorted(o.finished or 0 for o in engine.outcomes.values())[at] + 1 for engine in (reserved, paged)]
    running = [_mean_running(reserved), _mean_running(paged)]
    return Result(
        reserved_running=running[0],
        paged_running=running[1],
        concurrency=running[1] / running[0],
        reserved_p99=ends[0],
        paged_p99=ends[1],
        p99_reduction=1 - ends[1] / ends[0],
        preemptions=paged.num_preemptions,
    )


def _mean_running(engine: CoreEngine) -> float:
    return sum(len(step.rows) for step in engine.steps) / engine.num_steps
