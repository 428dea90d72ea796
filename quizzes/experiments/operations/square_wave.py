from engine.sim.autoscaler import Autoscaler, AutoscalerConfig, ScaleEvent, count_thrash
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E50")
def square_wave(
    ctx: Context,
    high: float = arg(0.8, 0, 50),
    low: float = arg(0.4, 0, 50),
    half_period_s: int = arg(300, 10, 7200),
    periods: int = arg(6, 1, 50),
    base_replicas: int = arg(4, 1, 64),
    out_above: float = arg(0.7, above=0, high=1),
    in_below: float = arg(0.5, 0, 1),
    sustain_out: float = arg(120.0, 0, 3600),
    sustain_in: float = arg(120.0, 0, 3600),
    cooldown_out: float = arg(120.0, 0, 7200),
    cooldown_in: float = arg(600.0, 0, 7200),
    start_s: float = arg(60.0, 0, 3600),
) -> Result:
    """Check whether replicas come and go with a load that swings between two levels (`engine/sim/autoscaler.py`).

    The load is `high`, then `low` (shares of the capacity of `base_replicas`), each for half a period. The signal is
    the load over the serving replicas: usage, which may exceed 1. The autoscaler looks every 10 s.

    Returns:
        Actions of the autoscaler over all periods.
        outs, ins [replicas]
        thrash [changes]: Actions that undid the previous one within 15 minutes.
        overload_s [s]: The signal was over the threshold.
        replica_seconds [replica s]
        most_replicas, last_replicas
        change_times [s]
    """
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
    scaler, replicas = Autoscaler(config), base_replicas
    events: list[ScaleEvent] = []
    starting: list[float] = []
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
            total = replicas + len(starting)
            events.append(ScaleEvent(now, "out" if change > 0 else "in", 0, signal, total))
        paid += config.interval * (replicas + len(starting))
        most = max(most, replicas + len(starting))
    return Result(
        outs=sum(event.kind == "out" for event in events),
        ins=sum(event.kind == "in" for event in events),
        thrash=count_thrash(events),
        overload_s=overload,
        replica_seconds=paid,
        most_replicas=most,
        last_replicas=replicas + len(starting),
        change_times=[event.time for event in events],
    )
