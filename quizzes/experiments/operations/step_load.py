"""E50: load jumps at one moment; when does the new replica serve? Detection and start add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Reaction:
    """Seconds after the jump."""

    decided_s: Annotated[float, "s"]
    ready_s: Annotated[float, "s"]
    detection_s: Annotated[float, "s"]
    """Until the rule fired, cooldown included."""
    start_s: Annotated[float, "s"]
    within_goal: bool
    backlog: Annotated[int, "requests"]
    """Came in above what the old replicas could do, by the time that the new one serves."""


@experiment("E50")
def step_load(
    ctx: Context,
    *,
    jump_at: Annotated[float, Field(ge=0, le=3600)] = 305.0,
    sustain_out: Annotated[float, Field(ge=0, le=3600)] = 120.0,
    interval: Annotated[float, Field(ge=1, le=600)] = 10.0,
    start_s: Annotated[float, Field(ge=0, le=3600)] = 67.0,
    last_change: Annotated[float, Field(ge=-10_000, le=3600)] = -10_000.0,
    cooldown_out: Annotated[float, Field(ge=0, le=7200)] = 120.0,
    goal_s: Annotated[float, Field(ge=0, le=7200)] = 90.0,
    excess_rate: Annotated[float, Field(ge=0, le=1000)] = 2.0,
) -> Reaction:
    """The signal is over the threshold from `jump_at` on (seconds); the rule looks every `interval` seconds.

    `last_change`: when the autoscaler last acted. `excess_rate`: requests per second above capacity.
    """
    from engine.sim.autoscaler import Autoscaler, AutoscalerConfig

    config = AutoscalerConfig(
        "load",
        10,
        2,
        sustain_out=sustain_out,
        cooldown_out=cooldown_out,
        interval=interval,
        cold_start=start_s,
    )
    scaler = Autoscaler(config, last_change=last_change)
    now, looks = 0.0, 0
    while True:
        looks += 1
        now = looks * interval
        if scaler.decide(now, 20.0 if now >= jump_at else 5.0, 2) > 0:
            break
    detection = now - jump_at
    ready = detection + start_s
    return Reaction(
        decided_s=detection,
        ready_s=ready,
        detection_s=detection,
        start_s=start_s,
        within_goal=ready <= goal_s,
        backlog=int(excess_rate * ready),
    )
