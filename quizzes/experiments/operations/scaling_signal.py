from typing import Any, Literal

from engine.sim.autoscaler import AutoscalerConfig
from engine.sim.fleet import Fleet
from engine.sim.router import make_router
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.simulated import deploy


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

    Poisson arrivals at `rate` on llama-3.1-8b and an H100 with `max_num_seqs` and `num_blocks`.

    Returns:
        One replica at the start, the workload and one signal.
        outs [replicas]
        first_out_s [s]: -1: it never fired.
        queue_p50_ms, ttft_p99_ms [ms]
        peak_kv_usage [share]
        peak_waiting [requests]
        missed: Half the requests waited over a second, and the signal never fired.
        needless: The signal fired although under 1 % of the requests had waited over 0.2 s for a first token.
    """
    deployment = deploy("llama-3.1-8b", "h100", max_num_seqs=max_num_seqs)
    config = AutoscalerConfig(
        signal,
        out_above,
        out_above / 10,
        max_replicas=max_replicas,
        sustain_out=sustain_s,
        cooldown_out=60,
        cold_start=30,
        interval=5,
    )
    fleet = Fleet(
        lambda: make_engine(deployment, num_blocks=num_blocks, enable_prefix_caching=False),
        1,
        make_router("least-loaded"),
        config,
    )
    report = fleet.run(
        Workload(requests, rate, Lengths(prompt, prompt), Lengths(output, output), seed=ctx.seed)
    )
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
