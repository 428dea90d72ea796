"""E13: a server that collects batches against one that admits at every step, for requests that arrive over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Ask, Context, experiment
from quizzes.experiments.core_engine import CoreEngine
from quizzes.experiments.registry import BadArguments

PROMPT = 1
Arrival = Annotated[int, Field(ge=0, le=500)]
Length = Annotated[int, Field(ge=1, le=500)]


@dataclass(frozen=True)
class Waits:
    """By request, in order of arrival. A wait is the steps between arriving and being admitted."""

    collected_waits: Annotated[list[int], "steps"]
    continuous_waits: Annotated[list[int], "steps"]
    collected_finished: Annotated[list[int], "step"]
    continuous_finished: Annotated[list[int], "step"]
    collected_mean_wait: Annotated[float, "steps"]
    continuous_mean_wait: Annotated[float, "steps"]
    collected_mean_latency: Annotated[float, "steps"]
    """From arrival to the last token."""
    continuous_mean_latency: Annotated[float, "steps"]
    collected_steps: Annotated[int, "steps"]
    """Until everybody has finished, idle ones included."""
    continuous_steps: Annotated[int, "steps"]


@experiment("E13")
def batch_window(
    ctx: Context,
    *,
    slots: Annotated[int, Field(ge=1, le=32)] = 4,
    window: Annotated[int, Field(ge=0, le=200)] = 10,
    arrivals: Annotated[list[Arrival], Field(min_length=1, max_length=60)] = (0, 1, 3, 8, 9, 20),
    lens: Annotated[list[Length], Field(min_length=1, max_length=60)] = (5, 20, 4, 6, 12, 3),
) -> Waits:
    """Waiting for a batch to fill, and for the one before it to end.

    The collecting server starts a batch when the one before has ended and either `slots` requests wait or the oldest
    has waited `window` steps. The continuous one is the engine's scheduler as it is. Both compute on that scheduler.
    """
    if len(arrivals) != len(lens):
        raise BadArguments(f"{len(arrivals)} arrivals and {len(lens)} lens: give one length for each arrival")
    jobs = sorted(zip(arrivals, range(len(lens)), lens, strict=True))
    collected = _serve(ctx.core(max_num_seqs=slots), jobs, slots, window)
    continuous = _serve(ctx.core(max_num_seqs=slots, traced=True), jobs, 1, 0, collects=False)
    waits_a, ends_a = collected
    waits_b, ends_b = continuous
    count = len(jobs)
    return Waits(
        waits_a,
        waits_b,
        ends_a,
        ends_b,
        sum(waits_a) / count,
        sum(waits_b) / count,
        sum(end + 1 - job[0] for end, job in zip(ends_a, jobs, strict=True)) / count,
        sum(end + 1 - job[0] for end, job in zip(ends_b, jobs, strict=True)) / count,
        max(ends_a) + 1,
        max(ends_b) + 1,
    )


def _serve(
    engine: CoreEngine, jobs: list[tuple[int, int, int]], slots: int, window: int, *, collects: bool = True
) -> tuple[list[int], list[int]]:
    """(wait, step of the last token) of each job; the clock is the engine's step counter, idle steps included."""
    to_come = list(jobs)
    outside: list[tuple[int, int, int]] = []
    while to_come or outside or engine.scheduler.has_unfinished():
        now = engine.num_steps
        while to_come and to_come[0][0] <= now:
            outside.append(to_come.pop(0))
        if not collects:
            batch = outside
        elif not engine.scheduler.has_unfinished() and outside and _is_due(outside, slots, window, now):
            batch = outside[:slots]
        else:
            batch = []
        for _, index, length in batch:
            engine.add(Ask(f"r{index}", PROMPT, length))
        outside = outside[len(batch) :]
        engine.step()
    engine.close()
    outcomes = [engine.outcomes[f"r{index}"] for _, index, _ in jobs]
    waits = [outcome.admitted - job[0] for outcome, job in zip(outcomes, jobs, strict=True)]  # type: ignore[operator]
    return waits, [outcome.finished for outcome in outcomes]  # type: ignore[misc]


def _is_due(outside: list[tuple[int, int, int]], slots: int, window: int, now: int) -> bool:
    return len(outside) >= slots or now - outside[0][0] >= window
