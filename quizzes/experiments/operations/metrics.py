"""Counters, percentiles, queues and alerts, and a dashboard with one fault."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any, Literal, get_args

from engine.sim.cost import Efficiency, Rates
from engine.sim.memory import plan_memory
from engine.sim.report import percentiles
from engine.sim.run import make_engine, simulate
from engine.sim.workload import Lengths, SimRequest, Workload
from quizzes.experiments import Ask, Context, Fresh, Result, arg, deploy, experiment


@experiment("E51")
def alert_rule(
    before: float = arg(0.72, 0, 1),
    after: float = arg(0.45, 0, 1),
    threshold: float = arg(0.5, 0, 1),
    for_min: int = arg(15, 0, 240),
    window_min: int = arg(5, 1, 240),
    lasts_min: int = arg(600, 1, 2000),
    queries_per_min: int = arg(1000, 1, 100_000),
) -> Result:
    """Compute when an alert on a falling rate fires, given the rate's window and the rule's hold time.

    Hits and queries are counters that grow every minute; the rate is the ratio of their increases over the last
    `window_min` minutes. The rule is evaluated every minute and must hold for `for_min` minutes, as with Prometheus'
    `for`. The hit rate falls from `before` to `after` at minute 0 and recovers after `lasts_min`.

    Returns: Minutes after the drop.
        fires
        fires_after_min [min]: -1: never within the time looked at.
        below_after_min [min]: The windowed rate was first below the threshold; -1: never.
        rate_at_end [share]
    """
    hits = [0.0]
    for minute in range(-window_min, lasts_min + window_min):
        rate = after if 0 <= minute < lasts_min else before
        hits.append(hits[-1] + rate * queries_per_min)
    since, fires, first_below = None, -1, -1
    for minute in range(1, lasts_min + window_min + 1):
        rate = (hits[minute + window_min] - hits[minute]) / (queries_per_min * window_min)
        if rate < threshold - 1e-12:
            since = minute if since is None else since
            first_below = minute if first_below < 0 else first_below
            if fires < 0 and minute - since >= for_min:
                fires = minute
        else:
            since = None
        if minute == lasts_min:
            at_end = rate
    return Result(fires=fires >= 0, fires_after_min=fires, below_after_min=first_below, rate_at_end=at_end)


@experiment("E51")
def counters(
    ctx: Context,
    requests: int = arg(6, 1, 64),
    shared: int = arg(64, 0, 2000),
    own: int = arg(20, 1, 2000),
    output: int = arg(30, 1, 500),
    gap: int = arg(2, 0, 100),
    num_blocks: int = arg(200, 8, 4000),
    max_num_seqs: int = arg(8, 1, 64),
) -> Result:
    """Check the engine's counters against a recount from its steps.

    Requests with a common prefix of `shared` tokens and `own` distinct tokens arrive one every `gap` steps.

    Returns: Sums of `StepStats` over all steps, and the names under which vLLM exports them.
        prompt_tokens [tokens]: Prompt tokens of all requests: `vllm:prompt_tokens`.
        prefill_tokens [tokens]: Computed as prompt: without what was cached, with what was recomputed.
        generation_tokens [tokens]
        prefix_queries [tokens]: `vllm:prefix_cache_queries`: tokens that were looked up.
        prefix_hits [tokens]; hit_rate [share]
        preemptions: `vllm:num_preemptions`.
        peak_running, peak_waiting [requests]
        peak_kv_usage [share]: `vllm:kv_cache_usage_perc`: 0 to 1, in spite of its name.
        usage_at_end [share]: KV usage at the end; unreferenced cached blocks count as free.
        recount_differs: Counters that a recount from rows, outputs and events does not confirm.
    """
    fresh = Fresh()
    head = fresh(shared)
    asks = [Ask(f"r{i}", head + fresh(own), output, arrival=i * gap) for i in range(requests)]
    engine = ctx.core(num_blocks=num_blocks, max_num_seqs=max_num_seqs, traced=True).run(asks)
    stats = [step.stats for step in engine.steps]
    outcomes = list(engine.outcomes.values())

    def total(counter: str) -> int:
        return sum(getattr(stat, counter) for stat in stats)

    recount = {
        "num_generated_tokens": sum(len(o.token_steps) for o in outcomes),
        "num_scheduled_tokens": sum(step.num_tokens for step in engine.steps),
        "prefix_cache_hits": sum(engine.cached_tokens),
        "num_preempted": sum(len(o.preemptions) for o in outcomes),
        "num_finished": sum(o.finished is not None for o in outcomes),
    }
    return Result(
        prompt_tokens=requests * (shared + own),
        prefill_tokens=total("num_prefill_tokens"),
        generation_tokens=total("num_generated_tokens"),
        prefix_queries=total("prefix_cache_queries"),
        prefix_hits=total("prefix_cache_hits"),
        hit_rate=total("prefix_cache_hits") / total("prefix_cache_queries"),
        preemptions=total("num_preempted"),
        peak_running=max(stat.num_running for stat in stats),
        peak_waiting=max(stat.num_waiting for stat in stats),
        peak_kv_usage=max(stat.kv_cache_usage for stat in stats),
        usage_at_end=stats[-1].kv_cache_usage,
        recount_differs=sum(total(counter) != count for counter, count in recount.items()),
    )


@experiment("E51", "E22")
def queue_law(
    ctx: Context,
    slots: int = arg(4, 1, 64),
    output: int = arg(10, 1, 200),
    burst: int = arg(3, 1, 64),
    every: int = arg(5, 1, 100),
    bursts: int = arg(20, 1, 60),
) -> Result:
    """Check Little's law on the engine's scheduler: mean queue length = rate x mean wait.

    Returns: All steps: `burst` requests of `output` tokens arrive every `every` steps, `slots` run at once.
        mean_waiting [requests]; mean_wait [steps]
        rate [requests/step]: Arrivals over the whole time.
        little [requests]: rate x mean wait.
        peak_waiting [requests]
        wait_at_peak [steps]: Wait of the request that arrived last into the longest queue.
        service_rate [requests/step]: slots / output: the most that can end per step.
    """
    asks = [Ask(f"r{b}-{i}", 1, output, arrival=b * every) for b in range(bursts) for i in range(burst)]
    engine = ctx.core(max_num_seqs=slots, traced=True).run(asks)
    outcomes = list(engine.outcomes.values())
    lengths = [sum(o.arrival <= step < o.admitted for o in outcomes) for step in range(engine.num_steps)]
    peak = max(lengths)
    at = lengths.index(peak)
    waiting = [o for o in outcomes if o.arrival <= at < o.admitted]
    last = max(waiting, key=lambda o: o.admitted, default=outcomes[0])
    rate = len(outcomes) / engine.num_steps
    mean_wait = sum(o.admitted - o.arrival for o in outcomes) / len(outcomes)
    return Result(
        mean_waiting=sum(lengths) / engine.num_steps,
        mean_wait=mean_wait,
        rate=rate,
        little=rate * mean_wait,
        peak_waiting=peak,
        wait_at_peak=last.admitted - last.arrival,
        service_rate=slots / output,
    )


TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Seconds; vLLM v1/metrics/buckets.py."""


@experiment("E51")
def percentile_trap(
    fast_n: int = arg(900, 1, 100_000),
    slow_n: int = arg(100, 1, 100_000),
    fast_ms: int = arg(120, 1, 100_000),
    slow_ms: int = arg(900, 1, 100_000),
) -> Result:
    """Show that the mean of replicas' p99 is not the p99 of all requests, and that a histogram's p99 is an estimate.

    Returns: TTFT of two replicas: `fast_n` requests take `fast_ms` on one, `slow_n` take `slow_ms` on the other.
        p99_all_ms [ms]
        p99_mean_ms [ms]: The mean of the two replicas' p99.
        p99_fast_ms, p99_slow_ms [ms]
        p99_histogram_ms [ms]: p99 of all requests as PromQL's histogram_quantile interpolates it from the buckets.
        bucket_low_ms, bucket_high_ms [ms]
    """
    fast, slow = [fast_ms / 1000] * fast_n, [slow_ms / 1000] * slow_n
    spreads: list[Any] = [percentiles(values) for values in (fast, slow, fast + slow)]
    p_fast, p_slow, p_all = (spread.p99 for spread in spreads)
    guess, low, high = histogram_quantile(0.99, fast + slow)
    return Result(
        p99_all_ms=1000 * p_all,
        p99_mean_ms=1000 * (p_fast + p_slow) / 2,
        p99_fast_ms=1000 * p_fast,
        p99_slow_ms=1000 * p_slow,
        p99_histogram_ms=1000 * guess,
        bucket_low_ms=1000 * low,
        bucket_high_ms=1000 * high,
    )


def histogram_quantile(share: float, values: list[float]) -> tuple[float, float, float]:
    """(estimate, lower and upper edge of its bucket), in seconds: linear inside the bucket, like Prometheus."""
    rank, below, low = share * len(values), 0, 0.0
    for high in TTFT_BUCKETS:
        inside = sum(low < value <= high for value in values)
        if inside and below + inside >= rank:
            return low + (high - low) * (rank - below) / inside, low, high
        below, low = below + inside, high
    return TTFT_BUCKETS[-1], TTFT_BUCKETS[-1], math.inf


@experiment("E51")
def latency_parts(
    ctx: Context,
    rate: float = arg(5.0, above=0, high=500),
    requests: int = arg(300, 1, 1000),
    prompt: int = arg(1000, 1, 8000),
    output: int = arg(100, 1, 1000),
    max_num_seqs: int = arg(16, 1, 1024),
) -> Result:
    """Split the time to first token into queueing and prefill (simulated GPU).

    Returns: Means and tail of Poisson arrivals on llama-3.1-8b and an H100; moments are events of the scheduler.
        ttft_ms, queue_ms [ms]
        prefill_ms [ms]: Time from a request's first step to its first token.
        queue_share [share]: Queueing over the mean TTFT.
        ttft_p99_ms, queue_p99_ms, prefill_p99_ms, tpot_ms, e2e_ms [ms]
        sum_error_ms [ms]: The largest |TTFT - queue - prefill| and |e2e - TTFT - (n - 1) x TPOT| over all requests.
        utilisation [share]: Share of the time spent in steps.
    """
    engine = make_engine(
        deploy("llama-3.1-8b", "h100", max_num_seqs=max_num_seqs), enable_prefix_caching=False
    )
    engine.run(Workload(requests, rate, Lengths(prompt, prompt), Lengths(output, output), seed=ctx.seed))
    records = engine.recorder.finished
    parts = {
        "ttft": [record.ttft for record in records],
        "queue": [record.queue_time for record in records],
        "prefill": [record.first_token - record.scheduled for record in records],
    }
    spreads: dict[str, Any] = {name: percentiles(values) for name, values in parts.items()}
    errors = [abs(ttft - queue - prefill) for ttft, queue, prefill in zip(*parts.values(), strict=True)]
    errors += [abs(r.e2e - r.ttft - (r.num_tokens - 1) * r.tpot) for r in records]
    seconds = max(record.last_token for record in records) - min(record.arrival for record in records)
    return Result(
        **{f"{name}_ms": 1000 * part.mean for name, part in spreads.items()},
        queue_share=spreads["queue"].mean / spreads["ttft"].mean,
        **{f"{name}_p99_ms": 1000 * part.p99 for name, part in spreads.items()},
        tpot_ms=1000 * sum(r.tpot for r in records) / len(records),
        e2e_ms=1000 * sum(r.e2e for r in records) / len(records),
        sum_error_ms=1000 * max(errors),
        utilisation=engine.recorder.step_seconds / seconds,
    )


Fault = Literal[
    "none",
    "volatile_prompt",
    "small_pool",
    "no_chunking",
    "tiny_budget",
    "missing_stop",
    "overload",
    "throttled_gpu",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
SYSTEM, QUESTION, ANSWER = 1200, 200, 100
LONG_PROMPT = 7000
MAX_TOKENS = 600
RATE = 8.0
THROTTLE = 3.0
"""Slow-down of an overheated card."""


@experiment("E52", seconds=30)
def incident(
    fault: Fault = "volatile_prompt",
    seed: int = arg(0, 0, 10_000),
    minutes: float = arg(1.0, 0.5, 10),
) -> Result:
    """Put one fault into a chat service and compare its dashboard with the healthy one.

    Both serve the same requests on the real scheduler in virtual time: chats behind one system prompt and one long
    document in twenty, on one H100 with an 8 B model. Faults: a time stamp at the head of the prompt, a KV pool of a
    fortieth, prompts that are not chunked, a token budget of 64, a stop token that is not recognised, eight times the
    arrivals, a card that is three times slower.

    Returns: The same requests, with and without the fault.
        yesterday, today [panel]
        ratio [x]: Today over yesterday, where yesterday is not zero.
    """
    healthy, faulty = _panel("none", seed, minutes), _panel(fault, seed, minutes)
    return Result(
        yesterday={name: round(value, 4) for name, value in healthy.items()},
        today={name: round(value, 4) for name, value in faulty.items()},
        ratio={name: round(faulty[name] / value, 3) for name, value in healthy.items() if value},
    )


@lru_cache(maxsize=16)  # all faults of a seed have the same yesterday
def _panel(fault: Fault, seed: int, minutes: float) -> Mapping[str, float]:
    """Dashboard of a few minutes by figure. Seconds are virtual."""
    budget = {"no_chunking": 16384, "tiny_budget": 64}.get(fault, 1024)
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": 128, "max_model_len": 8192}
    deployment = deploy("llama-3-8b", "h100", **limits)
    rates = Rates.of(deployment.hardware, "bfloat16", Efficiency())
    if fault == "throttled_gpu":
        fields = ("bytes_per_s", "flops", "attention_bytes_per_s", "attention_flops")
        slow = {name: getattr(rates, name) / THROTTLE for name in fields}
        rates = replace(rates, **slow, step_overhead=rates.step_overhead * THROTTLE)
    num_blocks = plan_memory(deployment).num_blocks // (40 if fault == "small_pool" else 1)
    engine = make_engine(deployment, rates=rates, num_blocks=num_blocks)
    report: Any = simulate(engine, _requests(fault, seed, minutes))
    return dict(
        waiting=report.mean_waiting,
        running=report.mean_running,
        kv_usage=report.peak_kv_cache_usage,
        preemptions=report.num_preemptions,
        hit_rate=report.prefix_cache_hit_rate,
        ttft_p50=report.ttft.p50,
        ttft_p99=report.ttft.p99,
        itl_p50=report.itl.p50,
        itl_p99=report.itl.p99,
        itl_max=report.itl.max,
        tokens_per_step=(report.prefill_tokens + report.output_tokens) / report.num_steps,
        answer_tokens=report.output_tokens / report.num_finished,
        requests_per_s=report.requests_per_s,
    )


def _requests(fault: Fault, seed: int, minutes: float) -> list[SimRequest]:
    rng = Random(f"incident:{seed}")
    requests: list[SimRequest] = []
    now = 0.0
    while now < 60 * minutes:
        now += rng.expovariate(RATE * (8 if fault == "overload" else 1))
        is_long = rng.random() < 0.05
        own = rng.randint(QUESTION // 2, 2 * QUESTION)
        answer = rng.randint(ANSWER // 2, 2 * ANSWER)
        prompt_len = LONG_PROMPT if is_long else SYSTEM + own
        output_len = MAX_TOKENS if fault == "missing_stop" else answer
        prefix_id = -1 if is_long or fault == "volatile_prompt" else 0
        requests.append(SimRequest(len(requests), now, prompt_len, output_len, prefix_id, SYSTEM))
    return requests
