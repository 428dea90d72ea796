"""E22: a spike on three engines: as it is, with a faster model, and with a bound on its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment


@dataclass(frozen=True)
class Relief:
    """Of all requests, the share that was admitted within the limit; refused ones count as not."""

    plain_met: Annotated[float, "share"]
    faster_met: Annotated[float, "share"]
    bounded_met: Annotated[float, "share"]
    plain_worst_wait: Annotated[int, "steps"]
    faster_worst_wait: Annotated[int, "steps"]
    bounded_worst_wait: Annotated[int, "steps"]
    """Of those that were served."""
    refused: Annotated[int, "requests"]
    overload: Annotated[float, "x"]
    """Arrivals of the spike over what the plain engine can serve meanwhile."""


@experiment("E22")
def spike_relief(
    ctx: Context,
    *,
    slots: Annotated[int, Field(ge=1, le=32)] = 4,
    service: Annotated[int, Field(ge=2, le=200)] = 20,
    faster: Annotated[float, Field(ge=1, le=10)] = 1.3,
    spike: Annotated[int, Field(ge=1, le=300)] = 100,
    every: Annotated[int, Field(ge=1, le=50)] = 2,
    limit: Annotated[int, Field(ge=0, le=1000)] = 20,
    bound: Annotated[int, Field(ge=1, le=300)] = 4,
) -> Relief:
    """`spike` requests, one every `every` steps, `service` steps each on `slots` slots; waits up to `limit` are fine.

    faster: service / `faster`, rounded up, without a bound. bounded: the plain engine, which refuses whoever finds
    `bound` waiting.
    """
    plain = _serve(ctx, slots, service, spike, every, None)
    quick = _serve(ctx, slots, int(-(-service // faster)), spike, every, None)
    bounded = _serve(ctx, slots, service, spike, every, bound)

    def met(waits: list[int]) -> float:
        return sum(wait <= limit for wait in waits) / spike

    return Relief(
        met(plain),
        met(quick),
        met(bounded),
        max(plain),
        max(quick),
        max(bounded),
        spike - len(bounded),
        service / slots / every,
    )


def _serve(ctx: Context, slots: int, service: int, spike: int, every: int, bound: int | None) -> list[int]:
    """Waits of those that were let in."""
    engine = ctx.core(max_num_seqs=slots)
    for index in range(spike):
        while engine.num_steps < index * every:
            engine.step()
        free = max(0, slots - len(engine.scheduler.running))
        if bound is None or len(engine.scheduler.waiting) < bound + free:
            engine.add(Ask(f"r{index}", 1, service))
    engine.run()
    return [outcome.admitted - outcome.arrival for outcome in engine.outcomes.values()]  # type: ignore[operator]
