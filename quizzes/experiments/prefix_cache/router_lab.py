from typing import Any

from engine.sim.fleet import Fleet
from engine.sim.router import ROUTERS, make_router
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.charts import POINTS, vega
from quizzes.experiments.simulated import deploy


@experiment("E47")
def router_lab(
    ctx: Context,
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

    Returns:
        By router.
        hit_rate [share]: Cached over prompt tokens, the whole fleet.
        hits [tokens]
        imbalance [x]: Requests on the busiest replica over the mean.
        ttft_mean [s]: Virtual seconds of the cost model: compare, do not quote.
    """
    prefix = min(prefix, prompt - 1)
    order = [0] * (hot - 1) + list(range(sessions))
    trace = [
        SimRequest(i, i * gap, prompt, output, order[i % len(order)], prefix)
        for i in range(turns * len(order))
    ]
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


def chart(result: Result) -> dict[str, Any]:
    """Hit rate against balance, one point per router; top left is best."""
    values = [
        {"router": name, "hit rate": rate, "busiest over mean": result.imbalance[name]}
        for name, rate in result.hit_rate.items()
    ]
    return vega(
        values,
        POINTS,
        x=("busiest over mean:Q", {"scale": {"zero": False}}),
        y=("hit rate:Q", {"scale": {"zero": False}}),
        color="router:N",
    )
