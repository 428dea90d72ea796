"""E50: the same overload seen by different signals: KV usage, queue, unfinished requests, arrivals (simulated GPU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Seen:
    """One replica at the start, the workload and one signal."""

    outs: Annotated[int, "replicas"]
    first_out_s: Annotated[float, "s"]
    """-1: it never fired."""
    queue_p50_ms: Annotated[float, "ms"]
    ttft_p99_ms: Annotated[float, "ms"]
    peak_kv_usage: Annotated[float, "share"]
    peak_waiting: Annotated[int, "requests"]
    missed: bool
    """Half the requests waited over a second, and the signal never fired."""
    needless: bool
    """It fired, and hardly anybody (under 1 %) had waited over 0.2 s for a first token."""


@experiment("E50")
def scaling_signal(
    ctx: Context,
    *,
    signal: Literal["kv", "queue", "load", "rate"] = "kv",
    out_above: Annotated[float, Field(gt=0, le=1000)] = 0.7,
    sustain_s: Annotated[float, Field(ge=0, le=600)] = 30.0,
    rate: Annotated[float, Field(gt=0, le=200)] = 12.0,
    requests: Annotated[int, Field(ge=10, le=2500)] = 1200,
    prompt: Annotated[int, Field(ge=1, le=16_000)] = 200,
    output: Annotated[int, Field(ge=1, le=1000)] = 150,
    max_num_seqs: Annotated[int, Field(ge=1, le=1024)] = 8,
    num_blocks: Annotated[int, Field(ge=16, le=60_000)] = 8000,
    max_replicas: Annotated[int, Field(ge=1, le=8)] = 3,
) -> Seen:
    """Poisson arrivals at `rate` on llama-3.1-8b and an H100 with `max_num_seqs` and `num_blocks`."""
    from engine.sim.autoscaler import AutoscalerConfig
    from engine.sim.fleet import Fleet
    from engine.sim.hardware import get_hardware
    from engine.sim.memory import Deployment
    from engine.sim.models import get_model
    from engine.sim.router import make_router
    from engine.sim.run import make_engine
    from engine.sim.workload import Lengths, Workload

    deployment = Deployment(get_model("llama-3.1-8b"), get_hardware("h100"), max_num_seqs=max_num_seqs)
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
    run = report.run
    times = [event.time for event in report.events if event.kind == "out"]
    return Seen(
        outs=report.num_out,
        first_out_s=times[0] if times else -1.0,
        queue_p50_ms=1000 * run.queue.p50,
        ttft_p99_ms=1000 * run.ttft.p99,
        peak_kv_usage=run.peak_kv_cache_usage,
        peak_waiting=run.peak_waiting,
        missed=run.queue.p50 > 1 and not times,
        needless=bool(times) and run.ttft.p99 < 0.2,
    )
