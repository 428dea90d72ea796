"""Caches of several replicas, and low hit rates."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

from engine.core.hashing import BlockHasher
from engine.core.kv_events import KVEventFeed, MemoryPublisher, PrefixIndex
from engine.core.request import Request
from engine.core.router import PrefixRouter
from engine.sampling_params import SamplingParams
from engine.sim.fleet import Fleet
from engine.sim.router import ROUTERS, make_router
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from quizzes.experiments import Ask, Context, Fresh, Result, arg, deploy, experiment
from quizzes.experiments.charts import POINTS, vega

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

    Returns: Per request: every request is routed by weight. Sticky: a session is routed once and stays.
        hit_rate_per_request, hit_rate_sticky [share]
        shares_per_request, shares_sticky [share]: Share of the requests by replica.
        weights [share]: Shares asked for.
        error_per_request, error_sticky [share]: Largest distance of a replica's share from its weight.
    """

    def serve(sticky: bool) -> tuple[float, list[float]]:
        """Return the hit rate and the share of the requests by replica."""
        fresh, size = Fresh(), sum(turns) * (history // BLOCK + 3)
        engines = [ctx.core(num_blocks=size, block_size=BLOCK) for _ in weights]
        balance = WeightedRoundRobin(weights)
        homes = Sticky(balance.choose)
        histories = [fresh(history) for _ in turns]
        for turn in range(max(turns)):
            for session, last in enumerate(turns):
                if turn < last:
                    engine = engines[homes.choose(session) if sticky else balance.choose()]
                    engine.run([Ask(f"s{session}t{turn}", histories[session] + fresh(10), fresh(1))])
        hits = sum(sum(engine.cached_tokens) for engine in engines)
        shares = [len(engine.outcomes) / sum(turns) for engine in engines]
        return hits / (sum(turns) * (history + 10)), shares

    asked = [weight / sum(weights) for weight in weights]
    runs = {"per_request": serve(False), "sticky": serve(True)}
    return Result(
        **{f"hit_rate_{name}": rate for name, (rate, _) in runs.items()},
        **{f"shares_{name}": shares for name, (_, shares) in runs.items()},
        weights=asked,
        **{
            f"error_{name}": max(abs(a - b) for a, b in zip(shares, asked, strict=True))
            for name, (_, shares) in runs.items()
        },
    )


@experiment("E47")
def kv_event_router(
    ctx: Context,
    replicas: int = arg(2, 1, 6),
    sessions: int = arg(6, 1, 24),
    blocks_each: int = arg(6, 1, 20),
    pool: int = arg(60, 24, 1000),
    rounds: int = arg(3, 1, 8),
    restart: bool = False,
) -> Result:
    """Compare a router that estimates the replicas' caches from its own requests with one that receives KV events.

    Sessions take turns; engine.core.router decides; each replica has `pool` blocks. restart: after the first round
    every replica loses its cache, as after a deploy. Only the router with KV events learns of it.

    Returns: Requests after the first round. Guessed: the estimating router; told: the one with KV events.
        guessed_by_prefix [requests]: Sent to a replica because its prefix was thought to be there.
        guessed_hits [requests]: Requests that found a block of their prefix.
        told_by_prefix, told_hits, requests [requests]
        event_batches [batches]: KV-event batches that the second router read.
    """
    pool = max(pool, blocks_each + 2)

    def serve(told: bool) -> tuple[int, int, int]:
        """Return (requests routed by prefix, hits, batches) after the first round."""
        fresh, hasher = Fresh(), BlockHasher(BLOCK)
        engines = [ctx.core(num_blocks=pool, block_size=BLOCK) for _ in range(replicas)]
        publishers = [MemoryPublisher(10_000) for _ in engines]
        indexes = [PrefixIndex() for _ in engines]
        feeds = [
            KVEventFeed(engine.scheduler, publisher, clock=lambda: 0.0)
            for engine, publisher in zip(engines, publishers, strict=True)
        ]
        router = PrefixRouter(replicas, indexes=indexes if told else None)
        prompts = [fresh(blocks_each * BLOCK + 1) for _ in range(sessions)]
        hits = batches = by_prefix_before = 0
        for turn in range(rounds + 1):
            if turn == 1:
                by_prefix_before = sum(router.num_by_prefix)
                for engine, feed in zip(engines, feeds, strict=True):
                    if restart and engine.scheduler.reset_prefix_cache():
                        feed.reset()
            for session, prompt in enumerate(prompts):
                for publisher, index in zip(publishers, indexes, strict=True):
                    for batch in publisher.take():
                        index.apply(batch)
                        batches += 1
                request = Request("hashes", prompt, SamplingParams(max_tokens=1))
                hasher.extend(request)
                replica = router.route(request.block_hashes)
                engine, name = engines[replica], f"s{session}t{turn}"
                engine.add(Ask(name, prompt, fresh(1)))
                while engine.scheduler.has_unfinished():
                    engine.step()
                    feeds[replica].step()
                router.finish(replica)
                hits += bool(turn) and engine.outcomes[name].cached_tokens > 0
        return sum(router.num_by_prefix) - by_prefix_before, hits, batches

    (guessed, guessed_hits, _), (by_events, told_hits, batches) = serve(told=False), serve(told=True)
    return Result(
        guessed_by_prefix=guessed,
        guessed_hits=guessed_hits,
        told_by_prefix=by_events,
        told_hits=told_hits,
        requests=sessions * rounds,
        event_batches=batches,
    )


@experiment("E47")
def router_lab(
    replicas: int = arg(4, 1, 12),
    sessions: int = arg(6, 1, 40),
    turns: int = arg(8, 1, 20),
    hot: int = arg(1, 1, 20),
    prompt: int = arg(1200, 32, 4000),
    prefix: int = arg(1000, 16, 4000),
    output: int = arg(40, 1, 300),
    gap: float = arg(5.0, above=0, high=60),
    pool: int = arg(8000, 300, 50_000),
) -> Result:
    """Route sessions over replicas and compare hit rate and balance of the routers of engine.sim.

    Every `gap` seconds one session asks, in turn. Requests of a session share their first `prefix` tokens. Session 0
    asks `hot` times per turn. A llama-3.1-8b on h100 replicas with `pool` blocks each.

    Returns: By router.
        hit_rate [share]: Cached over prompt tokens, the whole fleet.
        hits [tokens]
        imbalance [x]: Requests on the busiest replica over the mean.
        ttft_mean [s]: Virtual seconds of the cost model: compare, do not quote.
    """
    prefix = min(prefix, prompt - 1)
    order = [0] * (hot - 1) + list(range(sessions))
    users = order * turns
    trace = [SimRequest(i, i * gap, prompt, output, user, prefix) for i, user in enumerate(users)]
    deployment = deploy("llama-3.1-8b", "h100")
    hits, ttft, imbalance = {}, {}, {}
    for name in ROUTERS:
        fleet = Fleet(lambda: make_engine(deployment, num_blocks=pool + 1), replicas, make_router(name))
        report = fleet.run(trace)
        records = [r for replica in fleet.replicas for r in replica.engine.recorder.finished]
        key = name.replace("-", "_")
        hits[key] = sum(record.num_cached_tokens for record in records)
        ttft[key] = sum(record.ttft for record in records) / len(records)
        imbalance[key] = report.balance
    rates = {name: count / (len(trace) * prompt) for name, count in hits.items()}
    return Result(hit_rate=rates, hits=hits, imbalance=imbalance, ttft_mean=ttft)


def router_lab_chart(result: Result) -> dict[str, Any]:
    """Hit rate against balance, one point per router; top left is best."""
    rates, balance = result.hit_rate, result.imbalance
    return vega(
        {
            "router": list(rates),
            "hit rate": list(rates.values()),
            "busiest over mean": list(balance.values()),
        },
        POINTS,
        x=("busiest over mean:Q", {"scale": {"zero": False}}),
        y=("hit rate:Q", {"scale": {"zero": False}}),
        color="router:N",
    )


@experiment("E47", "E52")
def hit_rate_drop(
    ctx: Context,
    cause: Literal["healthy", "template", "eviction", "routing", "short_chats"] = "healthy",
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

    Returns: Figures as on a dashboard.
        hit_rate [share]: Cached over prompt tokens, all replicas.
        hit_share [share]: Requests with any hit over all requests.
        evictions [blocks]; prompt_mean [tokens]
        misses_at_start [share]: Requests that do not even hit their first block.
    """
    fresh = Fresh()
    longest = system + turns * turn
    blocks_each = longest // BLOCK + 2
    ample, scarce = (replicas + sessions) * turns * blocks_each, blocks_each + sessions
    engines = [
        ctx.core(
            num_blocks=scarce if cause == "eviction" else ample,
            block_size=BLOCK,
            max_num_batched_tokens=longest,
            traced=True,
        )
        for _ in range(replicas if cause == "routing" else 1)
    ]
    instructions = fresh(system)
    histories: list[list[int]] = [[] for _ in range(sessions)]
    prompt_tokens = 0
    for sent in range(turns * sessions):
        question, answer = fresh(turn - turn // 2), fresh(turn // 2)
        history = histories[sent % sessions]
        if cause == "short_chats":
            history.clear()
            question = fresh(longest)[: 2 * system]
        stamp = fresh(1) if cause == "template" else []
        prompt = [*stamp, *instructions, *history, *question]
        # Shift by one per round; otherwise sessions stay on one replica if they are as many as replicas.
        engine = engines[(sent + sent // sessions) % len(engines)]
        engine.run([Ask(f"r{sent}", prompt, answer)])
        prompt_tokens += len(prompt)
        history += question + answer
    cached = [hit for engine in engines for hit in engine.cached_tokens]
    return Result(
        hit_rate=sum(cached) / prompt_tokens,
        hit_share=sum(hit > 0 for hit in cached) / len(cached),
        evictions=sum(engine.scheduler.kv.pool.num_evictions for engine in engines),
        prompt_mean=prompt_tokens / len(cached),
        misses_at_start=cached.count(0) / len(cached),
    )
