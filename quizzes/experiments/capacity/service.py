"""A service under open-loop traffic on a fleet: what design canvases and incidents run on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

from quizzes.experiments import Result, arg, experiment
from quizzes.experiments.capacity._service_run import figures
from quizzes.experiments.capacity.plans import Dtype, Gpu, KvDtype
from quizzes.experiments.charts import LINE, stacked, vega

Router = Literal[
    "round-robin", "least-loaded", "token-aware", "prefix-affinity", "consistent-hash", "bounded-load"
]
Signal = Literal["queue", "load", "kv", "rate"]


@experiment("E50", "E52", "E56", "E63", seconds=30)
def service(
    rate: float = arg(8.0, above=0, high=200),
    seconds: float = arg(60.0, 10, 600),
    spike: float = arg(1.0, 0, 20),
    spike_at_s: float = arg(20.0, 0, 600),
    spike_for_s: float = arg(10.0, 1, 600),
    spike_every_s: float = arg(0.0, 0, 600),
    prompt: int = arg(600, 1, 32_000),
    output: int = arg(150, 2, 4000),
    spread: float = arg(0.4, 0, 1.2),
    prefix_len: int = arg(0, 0, 16_000),
    tenants: int = arg(1, 1, 1000),
    volatile_head: bool = False,
    long_share: float = arg(0.0, 0, 1),
    long_prompt: int = arg(6000, 1, 100_000),
    model: str = "llama-3.1-8b",
    gpu: Gpu = "h100",
    tp: int = arg(1, 1, 8),
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    gpu_memory_utilization: float = arg(0.92, 0.1, 0.98),
    block_size: Literal[8, 16, 32, 64] = 16,
    max_num_seqs: int = arg(256, 1, 1024),
    max_num_batched_tokens: int = arg(8192, 64, 65_536),
    chunked_prefill: bool = True,
    long_prefill_token_threshold: int = arg(0, 0, 65_536),
    prefix_caching: bool = True,
    spec_tokens: int = arg(0, 0, 8),
    spec_acceptance: float = arg(0.7, 0, 1),
    step_overhead_ms: float = arg(0.8, 0.1, 100),
    replicas: int = arg(2, 1, 32),
    router: Router = "least-loaded",
    slow_replica: float = arg(1.0, 1, 20),
    down_at_s: float = arg(-1.0, -1, 600),
    max_waiting: int = arg(0, 0, 10_000),
    max_replicas: int = arg(0, 0, 64),
    signal: Signal = "load",
    out_above: float = arg(32.0, above=0, high=10_000),
    in_below: float = arg(8.0, 0, 10_000),
    sustain_s: float = arg(20.0, 0, 600),
    cooldown_s: float = arg(60.0, 0, 3600),
    cooldown_in_s: float = arg(300.0, 0, 3600),
    cold_start_s: float = arg(90.0, 0, 1800),
    warm_pool: int = arg(0, 0, 16),
    timeout_s: float = arg(0.0, 0, 600),
    retries: int = arg(0, 0, 10),
    cancel: bool = True,
    slo_ttft_ms: float = arg(1000.0, above=0, high=600_000),
    slo_tpot_ms: float = arg(50.0, above=0, high=60_000),
    price: float | None = arg(None, 0, 10_000),
    seed: int = arg(0, 0, 1_000_000),
) -> Result:
    """Serve open-loop traffic on a fleet of simulated replicas, with faults as arguments.

    The table of arguments and faults is in quizzes/experiments/capacity/SERVICE.md.

    Returns: All replicas together unless stated otherwise; times are 1e9 if nothing was served.
        fits, problem: Whether the deployment is possible, and why not; goodput is 0 then.
        requests, finished, rejected, gave_up, attempts, late [requests]
        goodput, requests_per_s [requests/s]; slo_share, error_share [share]
        ttft_mean_ms, ttft_p50_ms, ttft_p95_ms, ttft_p99_ms, queue_mean_ms, queue_p50_ms, queue_p95_ms [ms]
        queue_p99_ms, itl_mean_ms, itl_p50_ms, itl_p95_ms, itl_p99_ms, itl_max_ms, tpot_mean_ms [ms]
        tpot_p50_ms, tpot_p95_ms, tpot_p99_ms, e2e_mean_ms, e2e_p50_ms, e2e_p95_ms, e2e_p99_ms [ms]
        waiting_mean, waiting_max, running_mean, running_max [requests]; kv_usage_mean, kv_usage_max [share]
        preemptions; hit_rate, busy, wasted_share [share]; steps; step_mean_ms, step_p50_ms, step_p99_ms [ms]
        tokens_per_step, prompt_tokens_mean, output_tokens_mean [tokens]
        prompt_tokens_per_s, output_tokens_per_s [tokens/s]
        gpus_mean, gpus_max [GPUs]; dollars_per_hour [$/h]; dollars_per_mtok [$]; scale_outs, scale_ins, thrash
        replica, series, formula
    """
    return Result(**figures(SimpleNamespace(**locals())))


def service_chart(result: Result) -> dict[str, object]:
    """Draw waiting and running requests over time."""
    levels = {name: result.series[name] for name in ("waiting", "running")}
    columns = stacked("time_s", result.series["time_s"], "requests", **levels)
    return vega(columns, LINE, x=("time_s:Q", {"title": "time (s)"}), y="requests:Q", color="what:N")
