"""E50: load swings between two levels; do replicas come and go with every swing? (`engine/sim/autoscaler.py`)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Wave:
    """What the autoscaler did in all periods."""

    outs: Annotated[int, "replicas"]
    ins: Annotated[int, "replicas"]
    thrash: Annotated[int, "changes"]
    """That undid the one before within 15 minutes."""
    overload_s: Annotated[float, "s"]
    """The signal was over the threshold."""
    replica_seconds: Annotated[float, "replica s"]
    most_replicas: int
    last_replicas: int
    change_times: Annotated[list[float], "s"]


@experiment("E50")
def square_wave(
    ctx: Context,
    *,
    high: Annotated[float, Field(ge=0, le=50)] = 0.8,
    low: Annotated[float, Field(ge=0, le=50)] = 0.4,
    half_period_s: Annotated[int, Field(ge=10, le=7200)] = 300,
    periods: Annotated[int, Field(ge=1, le=50)] = 6,
    base_replicas: Annotated[int, Field(ge=1, le=64)] = 4,
    out_above: Annotated[float, Field(gt=0, le=1)] = 0.7,
    in_below: Annotated[float, Field(ge=0, le=1)] = 0.5,
    sustain_out: Annotated[float, Field(ge=0, le=3600)] = 120.0,
    sustain_in: Annotated[float, Field(ge=0, le=3600)] = 120.0,
    cooldown_out: Annotated[float, Field(ge=0, le=7200)] = 120.0,
    cooldown_in: Annotated[float, Field(ge=0, le=7200)] = 600.0,
    start_s: Annotated[float, Field(ge=0, le=3600)] = 60.0,
) -> Wave:
    """The load is `high`, then `low` (share of what `base_replicas` can do), each for half a period.

    The signal is the load over those that serve: usage, 0 to 1 and beyond. One look every 10 s.
    """
    from engine.sim.autoscaler import Autoscaler, AutoscalerConfig, ScaleEvent, count_thrash

    config = AutoscalerConfig(
        "kv",
        out_above,
        in_below,
        min_replicas=1,
        max_replicas=64,
        sustain_out=sustain_out,
        sustain_in=sustain_in,
        cooldown_out=cooldown_out,
        cooldown_in=cooldown_in,
    )
    scaler, events = Autoscaler(config), []
    replicas, starting = base_replicas, []
    overload = paid = 0.0
    most = replicas
    steps = int(2 * half_period_s * periods / config.interval)
    for step in range(1, steps + 1):
        now = step * config.interval
        ready = sum(when <= now for when in starting)
        starting = [when for when in starting if when > now]
        replicas += ready
        load = high if (step - 1) * config.interval // half_period_s % 2 == 0 else low
        signal = load * base_replicas / replicas
        overload += config.interval * (signal > out_above)
        change = scaler.decide(now, signal, replicas + len(starting))
        if change > 0:
            starting.append(now + start_s)
        elif change < 0:
            replicas -= 1
        if change:
            kind = "out" if change > 0 else "in"
            events.append(ScaleEvent(now, kind, 0, signal, replicas + len(starting)))
        paid += config.interval * (replicas + len(starting))
        most = max(most, replicas + len(starting))
    return Wave(
        outs=sum(event.kind == "out" for event in events),
        ins=sum(event.kind == "in" for event in events),
        thrash=count_thrash(events),
        overload_s=overload,
        replica_seconds=paid,
        most_replicas=most,
        last_replicas=replicas + len(starting),
        change_times=[event.time for event in events],
    )
