"""E22: arrivals faster than service, with a queue of any length and with a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Queue:
    """Waits count from the arrival to the admission; those turned away are in none of the means."""

    served: Annotated[int, "requests"]
    rejected: Annotated[int, "requests"]
    mean_wait: Annotated[float, "steps"]
    worst_wait: Annotated[int, "steps"]
    last_wait: Annotated[int, "steps"]
    """Of the last one that was served."""
    peak_queue: Annotated[int, "requests"]
    mean_queue: Annotated[float, "requests"]
    """Waiting requests, averaged over the steps of the run."""
    throughput: Annotated[float, "requests/step"]
    little_wait: Annotated[float, "steps"]
    """mean_queue / throughput: Little's law turned round."""
    steps: Annotated[int, "steps"]


@experiment("E22")
def queue_bound(
    ctx: Context,
    *,
    slots: Annotated[int, Field(ge=1, le=64)] = 4,
    service: Annotated[int, Field(ge=1, le=200)] = 20,
    burst: Annotated[int, Field(ge=1, le=50)] = 1,
    every: Annotated[int, Field(ge=1, le=100)] = 4,
    arrivals: Annotated[int, Field(ge=1, le=300)] = 100,
    bound: Annotated[int, Field(ge=0, le=300)] = 0,
    random: bool = False,
    seed: Annotated[int, Field(ge=0, le=10_000)] = 0,
) -> Queue:
    """`burst` requests every `every` steps, each `service` steps on one of `slots` slots.

    bound: a newcomer that finds as many waiting is turned away at the door (0: no bound), as a gateway does it, and
    vLLM with max_num_queued_reqs. random: gaps are drawn (geometric, same mean) and so are service times.
    """
    from random import Random

    rng = Random(f"queue-{seed}")
    engine = ctx.core(max_num_seqs=slots, traced=True)
    to_come, moment = [], 0.0
    for index in range(arrivals):
        length = max(1, round(rng.expovariate(1 / service))) if random else service
        to_come.append((int(moment), f"r{index}", min(length, 10 * service)))
        if index % burst == burst - 1:
            moment += rng.expovariate(1 / every) if random else every
    served, rejected, waiting_sum, peak, busy = [], 0, 0, 0, 0
    while to_come or engine.scheduler.has_unfinished():
        while to_come and to_come[0][0] <= engine.num_steps:
            _, name, length = to_come.pop(0)
            free = slots - len(engine.scheduler.running)
            if bound and len(engine.scheduler.waiting) >= bound + max(0, free):
                rejected += 1
                continue
            engine.add(Ask(name, 1, length))
            served.append(name)
        waiting = engine.step().stats.num_waiting
        waiting_sum, peak, busy = waiting_sum + waiting, max(peak, waiting), busy + 1
    engine.close()
    waits = [engine.outcomes[name].admitted - engine.outcomes[name].arrival for name in served]  # type: ignore[operator]
    throughput = len(served) / busy
    return Queue(
        len(served),
        rejected,
        sum(waits) / len(waits),
        max(waits),
        waits[-1],
        peak,
        waiting_sum / busy,
        throughput,
        waiting_sum / busy / throughput,
        busy,
    )
