from engine.sim.autoscaler import Autoscaler, AutoscalerConfig
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E50")
def step_load(
    ctx: Context,
    jump_at: float = arg(305.0, 0, 3600),
    sustain_out: float = arg(120.0, 0, 3600),
    interval: float = arg(10.0, 1, 600),
    start_s: float = arg(67.0, 0, 3600),
    last_change: float = arg(-10_000.0, -10_000, 3600),
    cooldown_out: float = arg(120.0, 0, 7200),
    goal_s: float = arg(90.0, 0, 7200),
    excess_rate: float = arg(2.0, 0, 1000),
) -> Result:
    """Compute when a new replica serves after a jump in load: detection time plus start time.

    The signal is above the threshold from `jump_at` on (seconds); the rule is evaluated every `interval` seconds.
    `last_change`: when the autoscaler last acted. `excess_rate`: requests per second above capacity.

    Returns:
        Seconds after the jump.
        decided_s, ready_s [s]
        detection_s [s]: Time until the rule fired, cooldown included.
        start_s [s]
        within_goal
        backlog [requests]: Came in above what the old replicas could do, by the time that the new one serves.
    """
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
    return Result(
        decided_s=detection,
        ready_s=ready,
        detection_s=detection,
        start_s=start_s,
        within_goal=ready <= goal_s,
        backlog=int(excess_rate * ready),
    )
