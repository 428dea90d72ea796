"""Replicas that come and go with the load, and how long their start takes."""

from typing import Any, Literal

from engine.sim.autoscaler import Autoscaler, AutoscalerConfig, ScaleEvent, count_thrash
from engine.sim.engine import SimEngine
from engine.sim.fleet import Fleet
from engine.sim.router import make_router
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload
from quizzes.experiments import Context, Result, arg, deploy, experiment


@experiment("E59")
def cold_start(
    provision: float = arg(20.0, 0, 100_000),
    image_gb: float = arg(8.0, above=0, high=1e6),
    model_gb: float = arg(16.0, above=0, high=1e6),
    registry_mb_per_s: float = arg(400.0, above=0, high=1e6),
    store_mb_per_s: float = arg(100.0, above=0, high=1e6),
    disk_mb_per_s: float = arg(2000.0, above=0, high=1e6),
    baked: bool = False,
    image_on_node: bool = False,
    compile_and_capture: float = arg(30.0, 0, 100_000),
    warm_up: float = arg(5.0, 0, 100_000),
    objective: float = arg(90.0, 0, 100_000),
) -> Result:
    """Add up a cold start from bytes and rates: pull, read, load, compile, warm up.

    baked: the model is part of the image and is pulled with it from the registry; otherwise it is fetched from a store
    after the image. image_on_node: the image, and a baked model with it, is already on the node (a warm pool or a
    pre-pulled image). Then weights are read from disk to the device.

    Returns: One new replica, stage by stage. GB are 1e9 bytes.
        seconds, stages [s]; shares [share]; largest [stage]; meets_objective
    """
    pulled = 0.0 if image_on_node else (image_gb + (model_gb if baked else 0.0)) * 1000 / registry_mb_per_s
    stages = {
        "provision": provision,
        "pull_image": pulled,
        "fetch_model": 0.0 if baked else model_gb * 1000 / store_mb_per_s,
        "load_weights": model_gb * 1000 / disk_mb_per_s,
        "compile_and_capture": compile_and_capture,
        "warm_up": warm_up,
    }
    total = sum(stages.values())
    return Result(
        seconds=round(total, 3),
        stages={name: round(seconds, 3) for name, seconds in stages.items()},
        shares={name: round(seconds / total, 4) if total else 0.0 for name, seconds in stages.items()},
        largest=max(stages, key=stages.__getitem__),
        meets_objective=total <= objective,
    )


@experiment("E50")
def step_load(
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

    Returns: Seconds after the jump.
        decided_s, ready_s [s]
        detection_s [s]: Time until the rule fired, cooldown included.
        start_s [s]; within_goal
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
    now = interval
    looks = 1
    while scaler.decide(now, 20.0 if now >= jump_at else 5.0, 2) <= 0:
        looks += 1
        now = looks * interval
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


@experiment("E50")
def square_wave(
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

    Returns: Actions of the autoscaler over all periods.
        outs, ins [replicas]
        thrash [changes]: Actions that undid the previous one within 15 minutes.
        overload_s [s]: The signal was over the threshold.
        replica_seconds [replica s]; most_replicas, last_replicas; change_times [s]
    """
    times: dict[str, Any] = {"sustain_out": sustain_out, "sustain_in": sustain_in}
    times |= {"cooldown_out": cooldown_out, "cooldown_in": cooldown_in}
    config = AutoscalerConfig("kv", out_above, in_below, max_replicas=64, **times)
    scaler, replicas, interval = Autoscaler(config), base_replicas, config.interval
    events: list[ScaleEvent] = []
    starting: list[float] = []
    totals = [replicas]
    overload = 0.0
    for step in range(1, int(2 * half_period_s * periods / interval) + 1):
        now = step * interval
        replicas += sum(when <= now for when in starting)
        starting = [when for when in starting if when > now]
        load = high if (step - 1) * interval // half_period_s % 2 == 0 else low
        signal = load * base_replicas / replicas
        overload += interval * (signal > out_above)
        change = scaler.decide(now, signal, replicas + len(starting))
        if change > 0:
            starting.append(now + start_s)
        elif change < 0:
            replicas -= 1
        totals.append(replicas + len(starting))
        if change:
            events.append(ScaleEvent(now, "out" if change > 0 else "in", 0, signal, totals[-1]))
    kinds = [event.kind for event in events]
    return Result(
        outs=kinds.count("out"),
        ins=kinds.count("in"),
        thrash=count_thrash(events),
        overload_s=overload,
        replica_seconds=interval * sum(totals[1:]),
        most_replicas=max(totals),
        last_replicas=totals[-1],
        change_times=[event.time for event in events],
    )


@experiment("E50")
def scaling_signal(
    ctx: Context,
    signal: Literal["kv", "queue", "load", "rate"] = "kv",
    out_above: float = arg(0.7, above=0, high=1000),
    sustain_s: float = arg(30.0, 0, 600),
    rate: float = arg(12.0, above=0, high=200),
    requests: int = arg(1200, 10, 2500),
    prompt: int = arg(200, 1, 16_000),
    output: int = arg(150, 1, 1000),
    max_num_seqs: int = arg(8, 1, 1024),
    num_blocks: int = arg(8000, 16, 60_000),
    max_replicas: int = arg(3, 1, 8),
) -> Result:
    """Compare autoscaling signals under one overload: KV usage, queue, unfinished requests, arrivals (simulated GPU).

    Returns: One replica at the start, Poisson arrivals at `rate` on llama-3.1-8b and an H100, and one signal.
        outs [replicas]
        first_out_s [s]: -1: it never fired.
        queue_p50_ms, ttft_p99_ms [ms]; peak_kv_usage [share]; peak_waiting [requests]
        missed: Half the requests waited over a second, and the signal never fired.
        needless: The signal fired although under 1 % of the requests had waited over 0.2 s for a first token.
    """
    deployment = deploy("llama-3.1-8b", "h100", max_num_seqs=max_num_seqs)
    delays: dict[str, Any] = {"sustain_out": sustain_s, "cooldown_out": 60, "cold_start": 30, "interval": 5}
    config = AutoscalerConfig(signal, out_above, out_above / 10, max_replicas=max_replicas, **delays)

    def replica() -> SimEngine:
        return make_engine(deployment, num_blocks=num_blocks, enable_prefix_caching=False)

    load = Workload(requests, rate, Lengths(prompt, prompt), Lengths(output, output), seed=ctx.seed)
    report = Fleet(replica, 1, make_router("least-loaded"), config).run(load)
    run: Any = report.run
    times = [event.time for event in report.events if event.kind == "out"]
    return Result(
        outs=report.num_out,
        first_out_s=times[0] if times else -1.0,
        queue_p50_ms=1000 * run.queue.p50,
        ttft_p99_ms=1000 * run.ttft.p99,
        peak_kv_usage=run.peak_kv_cache_usage,
        peak_waiting=run.peak_waiting,
        missed=run.queue.p50 > 1 and not times,
        needless=bool(times) and run.ttft.p99 < 0.2,
    )
