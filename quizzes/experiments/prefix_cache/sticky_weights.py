from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._balancers import Sticky, WeightedRoundRobin
from quizzes.experiments.prefix_cache._tokens import Fresh

BLOCK = 16


@experiment("E47")
def sticky_weights(
    ctx: Context,
    weights: list[int] = arg([3, 2, 1], 1, 10, count=(1, 8)),
    turns: list[int] = arg([12, 2, 2, 2, 2, 2], 1, 30, count=(1, 24)),
    history: int = arg(320, 16, 2000),
) -> Result:
    """Compare weighted round robin per request and per session: hit rate against accurate shares.

    Sessions with `turns` requests each, interleaved, over replicas with `weights`, with one engine per replica.
    Every request of a session starts with the same `history` tokens and ends in 10 new ones. Nothing is evicted.

    Returns:
        Per request: every request is routed by weight. Sticky: a session is routed once and stays.
        hit_rate_per_request, hit_rate_sticky [share]
        shares_per_request, shares_sticky [share]: Share of the requests by replica.
        weights [share]: Shares asked for.
        error_per_request, error_sticky [share]: Largest distance of a replica's share from its weight.
    """
    per_request = _serve(ctx, list(weights), list(turns), history, sticky=False)
    sticky = _serve(ctx, list(weights), list(turns), history, sticky=True)
    asked = [weight / sum(weights) for weight in weights]
    return Result(
        hit_rate_per_request=per_request[0],
        hit_rate_sticky=sticky[0],
        shares_per_request=per_request[1],
        shares_sticky=sticky[1],
        weights=asked,
        error_per_request=max(abs(a - b) for a, b in zip(per_request[1], asked, strict=True)),
        error_sticky=max(abs(a - b) for a, b in zip(sticky[1], asked, strict=True)),
    )


def _serve(
    ctx: Context, weights: list[int], turns: list[int], history: int, sticky: bool
) -> tuple[float, list[float]]:
    fresh = Fresh()
    engines = [ctx.core(num_blocks=sum(turns) * (history // BLOCK + 3), block_size=BLOCK) for _ in weights]
    balance = WeightedRoundRobin(weights)
    homes = Sticky(balance.choose)
    histories = [fresh(history) for _ in turns]
    counts, hits = [0] * len(weights), 0
    for turn in range(max(turns)):
        for session, last in enumerate(turns):
            if turn < last:
                replica = homes.choose(session) if sticky else balance.choose()
                name = f"s{session}t{turn}"
                engines[replica].run([Ask(name, histories[session] + fresh(10), fresh(1))])
                counts[replica] += 1
                hits += engines[replica].outcomes[name].cached_tokens
    total = sum(counts)
    return hits / (total * (history + 10)), [count / total for count in counts]
