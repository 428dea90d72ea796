"""E47: sessions over replicas: what each way of routing does to the hit rate and to the balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from engine.sim.fleet import Fleet
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.router import ROUTERS, make_router
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Routed:
    """By router; names with underscores."""

    hit_rate: Annotated[dict[str, float], "share"]
    """Cached over prompt tokens, the whole fleet."""
    hits: Annotated[dict[str, int], "tokens"]
    imbalance: Annotated[dict[str, float], "x"]
    """Most requests on a replica over the mean."""
    ttft_mean: Annotated[dict[str, float], "s"]
    """Virtual seconds of the cost model: compare, do not quote."""


@experiment("E47")
def router_lab(
    ctx: Context,
    *,
    replicas: Annotated[int, Field(ge=1, le=12)] = 4,
    sessions: Annotated[int, Field(ge=1, le=40)] = 6,
    turns: Annotated[int, Field(ge=1, le=20)] = 8,
    hot: Annotated[int, Field(ge=1, le=20)] = 1,
    prompt: Annotated[int, Field(ge=32, le=4000)] = 1200,
    prefix: Annotated[int, Field(ge=16, le=4000)] = 1000,
    output: Annotated[int, Field(ge=1, le=300)] = 40,
    gap: Annotated[float, Field(gt=0, le=60)] = 5.0,
    pool: Annotated[int, Field(ge=300, le=50_000)] = 8000,
) -> Routed:
    """The routers of engine.sim on one trace: every `gap` seconds one session asks, in turn.

    Requests of a session share their first `prefix` tokens, the rest is new. Session 0 asks `hot` times per turn. A
    llama-3.1-8b on h100 replicas with `pool` blocks each.
    """
    prefix = min(prefix, prompt - 1)
    order = [0] * (hot - 1) + list(range(sessions))
    trace = [
        SimRequest(i, i * gap, prompt, output, order[i % len(order)], prefix)
        for i in range(turns * len(order))
    ]
    deployment = Deployment(get_model("llama-3.1-8b"), get_hardware("h100"))
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
    return Routed(rates, hits, imbalance, ttft)


def chart(result: Routed) -> dict[str, Any]:
    """Hit rate against balance, a point per router: top left is where one wants to be."""
    values = [
        {"router": name, "hit rate": rate, "busiest over mean": result.imbalance[name]}
        for name, rate in result.hit_rate.items()
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "point", "filled": True, "size": 90},
        "encoding": {
            "x": {"field": "busiest over mean", "type": "quantitative", "scale": {"zero": False}},
            "y": {"field": "hit rate", "type": "quantitative", "scale": {"zero": False}},
            "color": {"field": "router", "type": "nominal"},
        },
    }
