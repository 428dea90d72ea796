"""E16, E05: one cache, two ways to give it out: room for max_tokens at the start, or blocks as tokens come."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Annotated, Any

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.core_engine import CoreEngine
from quizzes.experiments.registry import BadArguments


@dataclass(frozen=True)
class Reservation:
    """The same requests both ways, all waiting at the start."""

    reserved_running: Annotated[float, "requests"]
    """Requests that computed, per step."""
    paged_running: Annotated[float, "requests"]
    concurrency: Annotated[float, "x"]
    """Paged over reserved."""
    reserved_p99: Annotated[int, "steps"]
    """Latency from the start to the last token, 99th percentile."""
    paged_p99: Annotated[int, "steps"]
    p99_reduction: Annotated[float, "share"]
    preemptions: int
    """Paged; the other cannot have any."""


@experiment("E16", "E05")
def reservation_race(
    ctx: Context,
    *,
    blocks: Annotated[int, Field(ge=50, le=2000)] = 300,
    requests: Annotated[int, Field(ge=1, le=200)] = 80,
    prompt: Annotated[int, Field(ge=1, le=500)] = 60,
    mean_output: Annotated[int, Field(ge=1, le=200)] = 60,
    max_tokens: Annotated[int, Field(ge=1, le=700)] = 400,
    seed: Annotated[int, Field(ge=0, le=10_000)] = 0,
) -> Reservation:
    """Outputs are exponential with that mean, cut at max_tokens. Reserved: a request starts when room for its prompt
    and all of max_tokens is free for it. Paged: as the engine does it. Every step counts the same.
    """
    from quizzes.experiments.scheduling._reserve import ReservingScheduler

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
    return Reservation(
        running[0],
        running[1],
        running[1] / running[0],
        ends[0],
        ends[1],
        1 - ends[1] / ends[0],
        paged.num_preemptions,
    )


def _mean_running(engine: CoreEngine) -> float:
    return sum(len(step.rows) for step in engine.steps) / engine.num_steps
