"""E51: how long is a queue of N? Little's law on the engine's own scheduler: mean length = rate x mean wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Queue:
    """Over all steps until everybody has finished."""

    mean_waiting: Annotated[float, "requests"]
    mean_wait: Annotated[float, "steps"]
    rate: Annotated[float, "requests/step"]
    """Arrivals over the whole time."""
    little: Annotated[float, "requests"]
    """rate x mean wait."""
    peak_waiting: Annotated[int, "requests"]
    wait_at_peak: Annotated[int, "steps"]
    """Of the request that came last into the longest queue."""
    service_rate: Annotated[float, "requests/step"]
    """slots / output: the most that can end per step."""


@experiment("E51", "E22")
def queue_law(
    ctx: Context,
    *,
    slots: Annotated[int, Field(ge=1, le=64)] = 4,
    output: Annotated[int, Field(ge=1, le=200)] = 10,
    burst: Annotated[int, Field(ge=1, le=64)] = 3,
    every: Annotated[int, Field(ge=1, le=100)] = 5,
    bursts: Annotated[int, Field(ge=1, le=60)] = 20,
) -> Queue:
    """`burst` requests of `output` tokens arrive every `every` steps; `slots` of them run at once."""
    asks = [Ask(f"r{b}-{i}", 1, output, arrival=b * every) for b in range(bursts) for i in range(burst)]
    engine = ctx.core(max_num_seqs=slots, traced=True).run(asks)
    outcomes = list(engine.outcomes.values())
    waits = [o.admitted - o.arrival for o in outcomes]
    lengths = [sum(o.arrival <= step < o.admitted for o in outcomes) for step in range(engine.num_steps)]
    peak = max(lengths)
    at = lengths.index(peak)
    last = max((o for o in outcomes if o.arrival <= at < o.admitted), key=lambda o: o.admitted, default=None)
    rate = len(outcomes) / engine.num_steps
    mean_wait = sum(waits) / len(waits)
    return Queue(
        mean_waiting=sum(lengths) / engine.num_steps,
        mean_wait=mean_wait,
        rate=rate,
        little=rate * mean_wait,
        peak_waiting=peak,
        wait_at_peak=0 if last is None else last.admitted - last.arrival,
        service_rate=slots / output,
    )
