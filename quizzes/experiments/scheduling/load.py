"""Load on one simulated replica."""

import math
from itertools import islice
from typing import Any, Literal

from engine.config import ConfigError
from engine.sim.engine import SimEngine
from engine.sim.report import RunReport, summarise
from engine.sim.run import make_engine, scheduler_config, simulate
from engine.sim.workload import Lengths, Workload
from quizzes.experiments import BadArguments, Result, arg, deploy, experiment
from quizzes.experiments.charts import LINE, stacked, vega

Model = Literal["llama-3.1-8b", "qwen2.5-7b", "qwen3-14b", "llama-3.1-70b"]
Gpu = Literal["l4", "a10g", "a100-80", "h100", "h200"]


def lengths(name: str, text: str, most: int) -> Lengths:
    """Return the lengths that an argument describes. Raises BadArguments if it is not valid or exceeds `most`."""
    try:
        parsed = Lengths.parse(text)
    except ConfigError as error:
        raise BadArguments(f"{name}: {error}") from None
    if parsed.longest > most:
        raise BadArguments(f"{name} = {text!r} may be {parsed.longest} tokens long; keep it to {most}")
    return parsed


Knob = Literal[
    "max_num_seqs",
    "max_num_batched_tokens",
    "rate",
    "kv_blocks",
    "long_prefill_token_threshold",
    "long_every",
]
Arrivals = Literal["poisson", "gamma", "constant"]


@experiment("E15", "E16", "E22", "E03")
def load_sweep(
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

    Returns: By value of the knob. Virtual time.
        values; ttft_mean_ms, ttft_p50_ms, ttft_p99_ms, itl_p50_ms, itl_p99_ms, e2e_mean_ms, e2e_p99_ms [ms]
        queue_mean_ms, queue_p95_ms, queue_p99_ms [ms]: Waiting time between arrival and admission.
        tokens_per_s [tokens/s]: Output tokens, from the first arrival to the last token.
        seconds [s]; mean_running, mean_waiting, peak_waiting [requests]; preemptions
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
    drawn = lengths("prompt", prompt, 60_000), lengths("output", output, 2000)

    def serve(value: float) -> dict[str, float]:
        settings = {name: int(number) for name, number in (fixed | {knob: value}).items()}
        limits = {name: settings[name] for name in ("max_num_batched_tokens", "max_num_seqs")}
        replica = deploy(model, gpu, max_model_len=65_536, **limits)
        scheduler = scheduler_config(replica, long_prefill=settings["long_prefill_token_threshold"])
        engine = make_engine(replica, num_blocks=settings["kv_blocks"] or None, scheduler=scheduler)
        per_second = value if knob == "rate" else rate
        load = list(Workload(requests, per_second, *drawn, arrivals=arrivals, seed=seed))
        for request in (
            load[settings["long_every"] - 1 :: settings["long_every"]] if settings["long_every"] else []
        ):
            request.prompt_len, request.output_len = long_prompt, long_output or request.output_len
        return _figures(engine, simulate(engine, load), ttft_limit_ms, tpot_limit_ms)

    runs = [serve(value) for value in values]
    return Result(values=list(values), **{name: [run[name] for run in runs] for name in runs[0]})


def _figures(engine: SimEngine, report: Any, ttft_limit_ms: float, tpot_limit_ms: float) -> dict[str, float]:
    records = engine.recorder.finished
    met = sum(1000 * r.ttft <= ttft_limit_ms and 1000 * r.tpot <= tpot_limit_ms for r in records)
    waits = sorted(record.queue_time for record in records)
    return {
        "ttft_mean_ms": 1000 * report.ttft.mean,
        "ttft_p50_ms": 1000 * report.ttft.p50,
        "ttft_p99_ms": 1000 * report.ttft.p99,
        "itl_p50_ms": 1000 * report.itl.p50,
        "itl_p99_ms": 1000 * report.itl.p99,
        "e2e_mean_ms": 1000 * report.e2e.mean,
        "e2e_p99_ms": 1000 * report.e2e.p99,
        "queue_mean_ms": 1000 * report.queue.mean,
        "queue_p95_ms": 1000 * waits[math.ceil(0.95 * len(waits)) - 1],
        "queue_p99_ms": 1000 * report.queue.p99,
        "tokens_per_s": report.output_tokens_per_s,
        "seconds": report.seconds,
        "mean_running": report.mean_running,
        "mean_waiting": report.mean_waiting,
        "peak_waiting": report.peak_waiting,
        "preemptions": report.num_preemptions,
        "goodput_per_s": met / report.seconds,
        "met_share": met / len(records),
        "mean_in_system": sum(record.e2e for record in records) / report.seconds,
        "little": report.requests_per_s * report.e2e.mean,
    }


def load_sweep_chart(result: Result) -> dict[str, Any]:
    """Time to the first token and between tokens by the knob's value, on a logarithmic scale."""
    series = {"mean TTFT": result.ttft_mean_ms, "p99 TTFT": result.ttft_p99_ms, "p99 ITL": result.itl_p99_ms}
    columns = stacked("value", result.values, "ms", **series)
    log = {"scale": {"type": "log"}}
    return vega(columns, LINE, x=("value:O", {"sort": None}), y=("ms:Q", log), color="what:N")


@experiment("E22", "E16")
def open_vs_closed(
    users: list[int] = arg([16, 64], 1, 512, count=(1, 5)),
    rates: list[float] = arg([10.0, 60.0], above=0, high=500, count=(1, 5)),
    requests: int = arg(300, 1, 400),
    prompt: str = "500",
    output: str = "100-200",
    max_num_seqs: int = arg(64, 1, 512),
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
    seed: int = arg(0, 0, 1000),
) -> Result:
    """Load the same engine with an open and a closed load generator.

    Closed loop: each of `users` sends its next request when its answer has come, so the queue never exceeds the number
    of users. Open loop: Poisson arrivals at `rates`, however slow the server is.

    Returns: Virtual time. Closed: by number of users. Open: by rate.
        closed_requests_per_s [requests/s]; closed_ttft_p99_ms, closed_e2e_mean_ms [ms]
        closed_in_system [requests]: Throughput x latency: with no thinking time, the number of users.
        open_requests_per_s [requests/s]; open_ttft_p99_ms, open_e2e_mean_ms [ms]; open_peak_waiting [requests]
    """
    drawn = (lengths("prompt", prompt, 20_000), lengths("output", output, 1000))
    replica = deploy(model, gpu, max_num_seqs=max_num_seqs, max_model_len=65_536)
    closed: list[Any] = [
        _closed(count, Workload(requests, 1.0, *drawn, seed=seed), make_engine(replica)) for count in users
    ]
    opened: list[Any] = [
        simulate(make_engine(replica), Workload(requests, rate, *drawn, seed=seed)) for rate in rates
    ]
    runs = {"closed": closed, "open": opened}
    return Result(
        **{f"{name}_requests_per_s": [run.requests_per_s for run in served] for name, served in runs.items()},
        **{f"{name}_ttft_p99_ms": [1000 * run.ttft.p99 for run in served] for name, served in runs.items()},
        **{f"{name}_e2e_mean_ms": [1000 * run.e2e.mean for run in served] for name, served in runs.items()},
        closed_in_system=[run.requests_per_s * run.e2e.mean for run in closed],
        open_peak_waiting=[run.peak_waiting for run in opened],
    )


def _closed(users: int, load: Workload, engine: SimEngine) -> RunReport:
    """Serve a closed loop: a user sends the next request at the end of the step that finished the last one."""
    requests, ends = iter(load), [0.0]
    engine.on_step = lambda _, load, seconds: ends.append(engine.now + seconds)
    engine.fast_forward = False
    free = users
    while True:
        for request in islice(requests, free):
            request.arrival = engine.now
            engine.add(request, engine.now)
        if not engine.num_unfinished:
            return summarise([engine.recorder], engine.scheduler.kv.pool.num_usable, engine.rejected)
        done = engine.run_until(engine.now + 1e-9)  # begins a step, which ends after that
        free = len(done) + len(engine.run_until(ends[-1]))
