import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from engine.sim.run import make_engine, scheduler_config, simulate
from engine.sim.workload import SimRequest, Workload
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.charts import LINE, vega
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment, lengths

Knob = Literal[
    "max_num_seqs",
    "max_num_batched_tokens",
    "rate",
    "kv_blocks",
    "long_prefill_token_threshold",
    "long_every",
]
Arrivals = Literal["poisson", "gamma", "constant"]


@dataclass(frozen=True)
class _Load:
    """The requests, apart from the knobs."""

    requests: int
    prompt: str
    output: str
    arrivals: Arrivals
    long_prompt: int
    long_output: int
    seed: int


@experiment("E15", "E16", "E22", "E03")
def load_sweep(
    ctx: Context,
    knob: Knob = "max_num_seqs",
    values: list[float] = arg([8, 32, 128], 0, 100_000, count=(1, 8)),
    rate: float = arg(20.0, above=0, high=1000),
    requests: int = arg(200, 1, 400),
    prompt: str = "200-1000",
    output: str = "50-250",
    arrivals: Arrivals = "poisson",
    long_every: int = arg(0, 0, 200),
    long_prompt: int = arg(16_000, 16, 60_000),
    long_output: int = arg(0, 0, 1000),
    max_num_seqs: int = arg(256, 1, 1024),
    budget: int = arg(8192, 64, 65_536),
    kv_blocks: int = arg(0, 0, 100_000),
    ttft_limit_ms: float = arg(500.0, above=0),
    tpot_limit_ms: float = arg(30.0, above=0),
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Sweep one knob over several values for the same requests: TTFT, ITL, tokens per second, queue, goodput.

    Lengths: "500", "200-1000" or "lognormal:MEAN:SIGMA". Every `long_every`-th request has a prompt of `long_prompt`
    tokens (0: none), and `long_output` output tokens unless that is 0. kv_blocks 0: all that the card has room for.
    Real scheduler and KV manager, roofline prices.

    Returns:
        By value of the knob. Virtual time.
        values
        ttft_mean_ms, ttft_p50_ms, ttft_p99_ms, itl_p50_ms, itl_p99_ms, e2e_mean_ms, e2e_p99_ms [ms]
        queue_mean_ms, queue_p95_ms, queue_p99_ms [ms]: Waiting time between arrival and admission.
        tokens_per_s [tokens/s]: Output tokens, from the first arrival to the last token.
        seconds [s]
        mean_running, mean_waiting, peak_waiting [requests]
        preemptions
        goodput_per_s [requests/s]: Requests that met both limits, per second of the run.
        met_share [share]: Share of the requests that met both limits.
        mean_in_system [requests]: Sum of the requests' times in the system over the length of the run.
        little [requests]: Finished requests per second x mean latency: Little's law says that it is the same.
    """
    fixed = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "rate": rate,
        "kv_blocks": kv_blocks,
        "long_prefill_token_threshold": 0,
        "long_every": long_every,
    }
    load = _Load(requests, prompt, output, arrivals, long_prompt, long_output, seed)
    runs = [
        _serve({**fixed, knob: value}, load, (ttft_limit_ms, tpot_limit_ms), model, gpu) for value in values
    ]
    columns: dict[str, Any] = {name: [run[name] for run in runs] for name in runs[0]}
    return Result(values=list(values), **columns)


def _serve(
    settings: dict[str, float], load: _Load, limits: tuple[float, float], model: Model, gpu: Gpu
) -> dict[str, float]:
    replica = deployment(
        model, gpu, budget=int(settings["max_num_batched_tokens"]), max_num_seqs=int(settings["max_num_seqs"])
    )
    threshold = int(settings["long_prefill_token_threshold"])
    engine = make_engine(
        replica,
        num_blocks=int(settings["kv_blocks"]) or None,
        scheduler=scheduler_config(replica, long_prefill=threshold),
    )
    report = simulate(engine, _requests(settings["rate"], int(settings["long_every"]), load))
    records = engine.recorder.finished
    met = sum(1000 * r.ttft <= limits[0] and 1000 * r.tpot <= limits[1] for r in records)
    waits = sorted(record.queue_time for record in records)
    in_system = sum(record.e2e for record in records) / report.seconds
    ttft, itl, queue, e2e = report.ttft, report.itl, report.queue, report.e2e
    assert ttft and itl and queue and e2e
    return {
        "ttft_mean_ms": 1000 * ttft.mean,
        "ttft_p50_ms": 1000 * ttft.p50,
        "ttft_p99_ms": 1000 * ttft.p99,
        "itl_p50_ms": 1000 * itl.p50,
        "itl_p99_ms": 1000 * itl.p99,
        "e2e_mean_ms": 1000 * e2e.mean,
        "e2e_p99_ms": 1000 * e2e.p99,
        "queue_mean_ms": 1000 * queue.mean,
        "queue_p95_ms": 1000 * waits[math.ceil(0.95 * len(waits)) - 1],
        "queue_p99_ms": 1000 * queue.p99,
        "tokens_per_s": report.output_tokens_per_s,
        "seconds": report.seconds,
        "mean_running": report.mean_running,
        "mean_waiting": report.mean_waiting,
        "peak_waiting": report.peak_waiting,
        "preemptions": report.num_preemptions,
        "goodput_per_s": met / report.seconds,
        "met_share": met / len(records),
        "mean_in_system": in_system,
        "little": report.requests_per_s * e2e.mean,
    }


def _requests(rate: float, long_every: int, load: _Load) -> Iterator[SimRequest]:
    prompt, output = lengths("prompt", load.prompt, 60_000), lengths("output", load.output, 2000)
    for request in Workload(load.requests, rate, prompt, output, arrivals=load.arrivals, seed=load.seed):
        if long_every and request.index % long_every == long_every - 1:
            request.prompt_len = load.long_prompt
            request.output_len = load.long_output or request.output_len
        yield request


def chart(result: Result) -> dict[str, Any]:
    """Time to the first token and between tokens by the knob's value, on a logarithmic scale."""
    columns = {"mean TTFT": result.ttft_mean_ms, "p99 TTFT": result.ttft_p99_ms, "p99 ITL": result.itl_p99_ms}
    values = [
        {"value": value, "ms": ms, "what": what}
        for what, column in columns.items()
        for value, ms in zip(result.values, column, strict=True)
    ]
    return vega(
        values, LINE, x=("value:O", {"sort": None}), y=("ms:Q", {"scale": {"type": "log"}}), color="what:N"
    )
