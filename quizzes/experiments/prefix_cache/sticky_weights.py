from collections.abc import Callable, Hashable, Sequence

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh

BLOCK = 16


class WeightedRoundRobin:
    """Smooth weighted round robin as in nginx: the replica furthest behind its share is next."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = list(weights)
        self._credit = [0] * len(weights)

    def choose(self) -> int:
        for index, weight in enumerate(self.weights):
            self._credit[index] += weight
        best = max(range(len(self.weights)), key=lambda index: (self._credit[index], -index))
        self._credit[best] -= sum(self.weights)
        return best


class Sticky:
    """Applies another rule once per key and keeps its choice."""

    def __init__(self, choose: Callable[[], int]) -> None:
        self._choose = choose
        self._home: dict[Hashable, int] = {}

    def choose(self, key: Hashable) -> int:
        if key not in self._home:
            self._home[key] = self._choose()
        return self._home[key]


@experiment("E47")
def sticky_weights(
    ctx: Context,
    weights: list[int] = arg([3, 2, 1], 1, 10, count=(1, 8)),
    turns: list[int] = arg([12, 2, 2, 2, 2, 2], 1, 30, count=(1, 24)),
    history: int = arg(320, 16, 2000),
) -> Result:
    """Compare weighted round robin per request and per session: hit rate against accurate shares.

    Sessions with `turns` requests each, interleaved, over replicas with `weights`, with one engine per replica. Every
    request of a session starts with the same `history` tokens and ends in 10 new ones. Nothing is evicted.

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
