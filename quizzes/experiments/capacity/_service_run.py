"""Set up, run and summarise `capacity.service`."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import fsum
from random import Random
from types import SimpleNamespace
from typing import Any

from engine.config import ConfigError, SchedulerConfig
from engine.sim.autoscaler import AutoscalerConfig, count_thrash
from engine.sim.clients import Patience, Service, User
from engine.sim.cost import Efficiency, Rates
from engine.sim.engine import SimEngine
from engine.sim.fleet import Fleet
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment, make_deployment, plan_memory
from engine.sim.models import get_model
from engine.sim.recorder import Recorder, RequestRecord
from engine.sim.report import Percentiles, percentiles, summarise
from engine.sim.router import Replica, make_router
from engine.sim.run import make_engine
from engine.sim.sizing import ASSUMED_PRICES, size
from engine.sim.speculation import Speculation
from engine.sim.steady_state import Replica as SteadyReplica
from engine.sim.workload import Lengths, SimRequest, Workload
from prep_common.percentile import percentile

NEVER = 1e9
"""Milliseconds that stand for a time without end; JSON has no infinity."""
MOST_REQUESTS = 3000
MOST_PROMPT_TOKENS = 8_000_000
MOST_OUTPUT_TOKENS = 1_200_000
MOST_DRAFTED_TOKENS = 150_000
"""Output tokens with speculation, whose steps are planned one by one."""
LOOK_EVERY_S = 5.0
WARM_START_S = 5.0
PREFIXES_FROM = 1 << 22
"""Prefix ids of requests whose head differs every time."""


@dataclass
class Traffic:
    """Mean request, for the formulas (`engine.sim.steady_state`)."""

    deployment: Deployment
    prompt: int
    output: int
    hit_tokens: int


class StepTimes(Recorder):
    """A recorder that also keeps the duration of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = array("d")

    def step(self, seconds: float, num_running: int, num_waiting: int, used_blocks: int) -> None:
        self.steps.append(seconds)
        super().step(seconds, num_running, num_waiting, used_blocks)


def figures(given: SimpleNamespace) -> dict[str, Any]:
    """Return the fields of the result."""
    requests = _requests(given)
    try:
        deployment = _deployment(given, requests)
        plan_memory(deployment)
        service = _service(given, deployment)
    except ConfigError as problem:
        return _impossible(given, requests, str(problem))
    service.serve(requests, given.seconds, given.down_at_s)
    return _summary(given, deployment, service)


# ------------------------------------------------------------------------------------------------ traffic


def _requests(given: SimpleNamespace) -> list[SimRequest]:
    """Draw the requests of the run. Raises ConfigError if they are too many to simulate."""
    phases, expected = _phases(given)
    tries = (given.retries + 1) if given.timeout_s else 1
    tokens = expected * (given.prefix_len + given.prompt + given.long_share * given.long_prompt)
    limits = [
        ("requests, retries included", expected * tries, MOST_REQUESTS),
        ("prompt tokens, retries included", tokens * tries, MOST_PROMPT_TOKENS),
        ("output tokens", expected * given.output, MOST_OUTPUT_TOKENS),
    ]
    if given.spec_tokens:
        limits.append(("output tokens with speculation", expected * given.output, MOST_DRAFTED_TOKENS))
    for what, amount, most in limits:
        if amount > most:
            raise ConfigError(
                f"the traffic is about {amount:,.0f} {what}; {most:,} is the limit: lower rate or seconds"
            )
    lengths = (
        Lengths(given.prompt, given.prompt, given.spread),
        Lengths(given.output, given.output, given.spread),
    )
    workload = Workload(
        MOST_REQUESTS * 2, given.rate, *lengths, num_prefixes=given.tenants if given.prefix_len else 0,
        prefix_len=max(1, given.prefix_len), seed=given.seed, phases=phases,
    )  # fmt: skip
    rng = Random(f"long-{given.seed}")
    requests = []
    for request in workload:
        if request.arrival > given.seconds:
            break
        if rng.random() < given.long_share:
            request.prompt_len, request.prefix_id = given.long_prompt, -1
        else:
            request.prompt_len += given.prefix_len
        if given.volatile_head and request.prefix_id >= 0:
            request.prefix_id = PREFIXES_FROM + request.index
        request.output_len = max(2, request.output_len)
        requests.append(request)
    return requests


def _phases(given: SimpleNamespace) -> tuple[tuple[tuple[float, float], ...], float]:
    """Return (seconds, rate) of the traffic, and the expected number of requests."""
    start, length, every = given.spike_at_s, given.spike_for_s, given.spike_every_s
    if given.spike == 1.0 or start >= given.seconds:
        return (), given.rate * given.seconds
    if every and every <= length:
        raise ConfigError(f"spike_every_s ({every:g}) must be more than spike_for_s ({length:g})")
    phases, now = [], 0.0
    while start < given.seconds:
        phases += [(start - now, given.rate), (length, given.rate * given.spike)]
        now = start + length
        start = start + every if every else math.inf
    phases.append((max(1.0, given.seconds - now), given.rate))
    kept = tuple((seconds, rate) for seconds, rate in phases if seconds > 0)
    now, expected = 0.0, 0.0
    for seconds, rate in kept:
        expected += rate * max(0.0, min(seconds, given.seconds - now))
        now += seconds
    return kept, expected


# ------------------------------------------------------------------------------------------------ fleet


def _deployment(given: SimpleNamespace, requests: Sequence[SimRequest]) -> Deployment:
    """Return one replica. Its max_model_len is the longest request, in whole 1024s."""
    longest = max((request.prompt_len + request.output_len for request in requests), default=1024)
    longest = -(-longest // 1024) * 1024
    most = get_model(given.model).max_position_embeddings
    if longest > most:
        raise ConfigError(
            f"the longest request has about {longest:,} tokens; {given.model} has {most:,} positions"
        )
    budget = (
        given.max_num_batched_tokens if given.chunked_prefill else max(given.max_num_batched_tokens, longest)
    )
    return make_deployment(
        model=given.model,
        gpu=given.gpu,
        tp=given.tp,
        dtype=given.dtype,
        kv_cache_dtype=given.kv_dtype,
        gpu_memory_utilization=given.gpu_memory_utilization,
        block_size=given.block_size,
        max_model_len=longest,
        max_num_seqs=min(given.max_num_seqs, budget),
        max_num_batched_tokens=budget,
    )


def _rates(given: SimpleNamespace, deployment: Deployment, slow: float = 1.0) -> Rates:
    """Return a replica's rates; `slow` divides all of them."""
    efficiency = Efficiency(step_overhead=given.step_overhead_ms / 1000)
    kind = deployment.precision.compute_dtype(deployment.hardware)
    rates = Rates.of(deployment.hardware, kind, efficiency)
    names = ("bytes_per_s", "flops", "attention_bytes_per_s", "attention_flops")
    fewer = {name: getattr(rates, name) / slow for name in names}
    more = {name: getattr(rates, name) * slow for name in ("step_overhead", "eager_overhead", "row_overhead")}
    return replace(rates, **fewer, **more)


def _service(given: SimpleNamespace, deployment: Deployment) -> Service:
    scheduler = SchedulerConfig(
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        max_num_seqs=deployment.max_num_seqs,
        max_model_len=deployment.max_model_len,
        enable_chunked_prefill=given.chunked_prefill,
        long_prefill_token_threshold=given.long_prefill_token_threshold if given.chunked_prefill else 0,
    )
    numbers = count()

    def build() -> SimEngine:
        """Build the next replica; the first is the slow one."""
        number = next(numbers)
        engine = make_engine(
            deployment,
            rates=_rates(given, deployment, given.slow_replica if number == 0 else 1.0),
            enable_prefix_caching=given.prefix_caching,
            scheduler=scheduler,
            speculation=_speculation(given, number),
        )
        engine.recorder = StepTimes()
        return engine

    fleet = Fleet(build, given.replicas, make_router(given.router), _autoscaler(given))
    patience = Patience(given.timeout_s or math.inf, given.retries, cancel=given.cancel)
    return Service(fleet, patience, given.max_waiting)


def _speculation(given: SimpleNamespace, number: int) -> Speculation | None:
    if not given.spec_tokens:
        return None
    return Speculation(given.spec_tokens, given.spec_acceptance, seed=1000 * given.seed + number)


def _autoscaler(given: SimpleNamespace) -> AutoscalerConfig | None:
    if given.max_replicas <= given.replicas:
        return None
    return AutoscalerConfig(
        given.signal,
        given.out_above,
        given.in_below,
        given.replicas,
        given.max_replicas,
        sustain_out=given.sustain_s,
        sustain_in=given.sustain_s,
        cooldown_out=given.cooldown_s,
        cooldown_in=given.cooldown_in_s,
        cold_start=given.cold_start_s,
        warm_start=min(WARM_START_S, given.cold_start_s),
        warm_pool=given.warm_pool,
        interval=LOOK_EVERY_S,
    )


# ------------------------------------------------------------------------------------------------ summary


def _summary(given: SimpleNamespace, deployment: Deployment, service: Service) -> dict[str, Any]:
    fleet, users = service.fleet, service.users
    recorders = [replica.engine.recorder for replica in fleet.replicas]
    usable = fleet.replicas[0].engine.scheduler.kv.pool.num_usable
    run = summarise(recorders, usable, [])
    answers = [(user, user.answer) for user in users if user.answer and user.answer.last_token >= 0]
    records = [record for _, record in answers]
    good = sum(_is_good(given, user.request.arrival, record) for user, record in answers)
    ends = [record.last_token for recorder in recorders for record in recorder.finished]  # late ones included
    duration = max([given.seconds, *ends])
    steps = sorted(step for recorder in recorders for step in recorder.steps)  # type: ignore[attr-defined]
    gpus = _gpus(given, fleet, deployment)
    output_tokens = sum(record.num_tokens for record in records)
    per_hour = _price(given) * gpus["gpus_mean"]
    answers_per_s = output_tokens / duration
    useful = sum(
        record.request.prompt_len - record.num_cached_tokens + record.num_tokens - 1 for record in records
    )
    computed = run.prefill_tokens + sum(recorder.num_decode_tokens for recorder in recorders)
    waiting = [sample.waiting for sample in service.samples]
    running = [sample.running for sample in service.samples]
    return {
        "fits": True,
        "problem": "",
        "requests": len(users),
        "attempts": service.num_attempts,
        "finished": len(records),
        "late": len(service.late),
        "rejected": service.num_rejected,
        "gave_up": sum(user.gave_up for user in users),
        "goodput": good / given.seconds,
        "slo_share": good / max(1, len(users)),
        "error_share": sum(user.gave_up for user in users) / max(1, len(users)),
        "requests_per_s": len(records) / duration,
        **_times(run.itl, answers),
        "waiting_mean": fsum(recorder.waiting_seconds for recorder in recorders) / duration,
        "waiting_max": max(waiting, default=0),
        "running_mean": fsum(recorder.running_seconds for recorder in recorders) / duration,
        "running_max": max(running, default=0),
        "kv_usage_mean": run.mean_kv_cache_usage,
        "kv_usage_max": run.peak_kv_cache_usage,
        "preemptions": run.num_preemptions,
        "hit_rate": run.prefix_cache_hit_rate,
        "busy": _busy(fleet, duration),
        "wasted_share": max(0.0, 1 - useful / max(1, computed)),
        "steps": run.num_steps,
        "step_mean_ms": 1000 * run.mean_step_seconds,
        "step_p50_ms": 1000 * percentile(steps, 50) if steps else 0.0,
        "step_p99_ms": 1000 * percentile(steps, 99) if steps else 0.0,
        "tokens_per_step": computed / max(1, run.num_steps),
        "prompt_tokens_mean": run.prompt_tokens / max(1, run.num_finished),
        "output_tokens_mean": output_tokens / max(1, len(records)),
        "prompt_tokens_per_s": run.prefill_tokens / duration,
        "output_tokens_per_s": answers_per_s,
        **gpus,
        "dollars_per_hour": per_hour,
        "dollars_per_mtok": per_hour / 3600 / answers_per_s * 1e6 if answers_per_s else NEVER,
        "replica": _by_replica(fleet, duration),
        "series": _series(given, service, answers),
        "formula": _formula(given, deployment),
    }


def _is_good(given: SimpleNamespace, arrival: float, record: RequestRecord) -> bool:
    """Return whether the user's answer met both objectives."""
    ttft = 1000 * (record.first_token - arrival)
    return ttft <= given.slo_ttft_ms and 1000 * record.tpot <= given.slo_tpot_ms


def _times(itl: Percentiles | None, answers: Sequence[tuple[User, RequestRecord]]) -> dict[str, float]:
    """Return the percentiles of all times in milliseconds. A user's times start with the first attempt."""
    spreads = {
        "ttft": percentiles([record.first_token - user.request.arrival for user, record in answers]),
        "queue": percentiles([record.queue_time for _, record in answers]),
        "itl": itl,
        "tpot": percentiles([record.tpot for _, record in answers if record.num_tokens > 1]),
        "e2e": percentiles([record.last_token - user.request.arrival for user, record in answers]),
    }
    milliseconds = {
        f"{name}_{which}_ms": 1000 * getattr(spread, which) if spread else NEVER
        for name, spread in spreads.items()
        for which in ("mean", "p50", "p95", "p99")
    }
    return {**milliseconds, "itl_max_ms": 1000 * itl.max if itl else NEVER}


def _busy(fleet: Fleet, duration: float) -> float:
    """Return the share of the replicas' time spent in steps."""
    alive = sum(_alive(replica, duration) for replica in fleet.replicas)
    return fsum(replica.engine.recorder.step_seconds for replica in fleet.replicas) / alive


def _alive(replica: Replica, end: float) -> float:
    """Return the seconds from a replica's start to its stop."""
    return max(1e-9, (end if replica.stopped is None else replica.stopped) - replica.started)


def _gpus(given: SimpleNamespace, fleet: Fleet, deployment: Deployment) -> dict[str, Any]:
    """Return GPUs that are paid for until the end of the traffic, and the autoscaler's changes."""
    end, per_replica = given.seconds, deployment.num_devices
    ends = [end if replica.stopped is None else min(end, replica.stopped) for replica in fleet.replicas]
    paid = sum(max(0.0, stop - replica.started) for stop, replica in zip(ends, fleet.replicas, strict=True))
    warm = given.warm_pool if fleet.config else 0
    most = max([given.replicas, *(event.replicas for event in fleet.events)])
    return {
        "gpus_mean": per_replica * (paid / end + warm),
        "gpus_max": per_replica * (most + warm),
        "scale_outs": sum(event.kind == "out" for event in fleet.events),
        "scale_ins": sum(event.kind == "in" for event in fleet.events),
        "thrash": count_thrash(fleet.events),
    }


def _price(given: SimpleNamespace) -> float:
    """Return dollars per GPU and hour, an assumption unless given."""
    return ASSUMED_PRICES[get_hardware(given.gpu).name] if given.price is None else float(given.price)


def _by_replica(fleet: Fleet, duration: float) -> dict[str, list[float]]:
    """Return figures by replica, in the order in which they started."""
    columns: dict[str, list[float]] = {}
    for replica in fleet.replicas:
        seen = replica.engine.recorder
        alive = _alive(replica, duration)
        ttfts = [record.ttft for record in seen.finished]
        row = {
            "served": len(seen.finished),
            "busy": min(1.0, seen.step_seconds / alive),
            "waiting": seen.waiting_seconds / alive,
            "running": seen.running_seconds / alive,
            "ttft_ms": 1000 * fsum(ttfts) / len(ttfts) if ttfts else 0.0,
            "step_ms": 1000 * seen.step_seconds / max(1, seen.num_steps),
            "hit_rate": seen.prefix_hits / max(1, seen.prefix_queries),
            "preemptions": seen.num_preemptions,
            "output_tokens": seen.num_generated_tokens,
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _series(
    given: SimpleNamespace, service: Service, answers: Sequence[tuple[User, RequestRecord]]
) -> dict[str, list[float]]:
    """Return levels over time; TTFT is the mean of requests that arrived since the sample before."""
    samples = service.samples
    period = samples[0].time if samples else 1.0
    arrived: list[list[float]] = [[] for _ in samples]
    for user, record in answers:
        index = int(user.request.arrival / period)
        if index < len(arrived):
            arrived[index].append(1000 * (record.first_token - user.request.arrival))
    return {
        "time_s": [round(sample.time, 3) for sample in samples],
        "rate": [sample.num_sent / period for sample in samples],
        "waiting": [sample.waiting for sample in samples],
        "running": [sample.running for sample in samples],
        "kv_usage": [round(sample.kv_cache_usage, 4) for sample in samples],
        "itl_ms": [round(1000 * sample.itl, 3) for sample in samples],
        "ttft_ms": [round(fsum(times) / len(times), 3) if times else 0.0 for times in arrived],
        "replicas": [sample.num_ready for sample in samples],
    }


# ------------------------------------------------------------------------------------------------ formulas


def _formula(given: SimpleNamespace, deployment: Deployment) -> dict[str, float]:
    """Return what formulas say about the steady state at `rate`, without faults of the fleet, spikes and drafts."""
    plan = plan_memory(deployment)
    short, rates = 1 - given.long_share, _rates(given, deployment)
    prompt = round(short * (given.prefix_len + given.prompt) + given.long_share * given.long_prompt)
    block = given.block_size
    shares = given.prefix_caching and not given.volatile_head
    hits = round(short * (given.prefix_len // block * block)) if shares else 0
    traffic = Traffic(deployment, max(1, prompt), given.output, min(hits, max(0, prompt - 1)))
    held = deployment.model.kv_tokens_held(traffic.prompt + traffic.output // 2)
    fit = plan.num_tokens / held
    limit = max(1, min(deployment.max_num_seqs, int(fit)))
    replica = SteadyReplica(traffic, limit, rates)
    rate = given.rate / given.replicas
    state, most = replica.at(rate), replica.most_requests_per_s()
    lengths = {"prompt": max(1, traffic.prompt - traffic.hit_tokens), "output": given.output}
    sizing = size(deployment, rate=given.rate, rates=rates, **lengths)
    return {
        "weights_gb": deployment.weight_bytes / 1e9,
        "kv_gb": plan.kv_budget * deployment.num_devices / 1e9,
        "kv_kb_per_token": deployment.kv_bytes_per_token / 1e3,
        "kv_tokens": plan.num_tokens,
        "kv_tokens_per_request": held,
        "seqs_that_fit": fit,
        "batch_limit": limit,
        "prompt_ms": 1000 * replica.prompt_cost(0),
        "decode_step_ms": 1000 * state.decode_step,
        "tpot_ms": 1000 * state.step if state.is_stable else NEVER,
        "ttft_ms": 1000 * state.ttft if state.is_stable else NEVER,
        "running": state.running,
        "load": rate / most,
        "max_rate": most * given.replicas,
        "replicas_needed": sizing.replicas,
        "hit_rate": traffic.hit_tokens / traffic.prompt,
    }


# ------------------------------------------------------------------------------------------------ impossible


def _impossible(given: SimpleNamespace, requests: Sequence[SimRequest], problem: str) -> dict[str, Any]:
    """Return the result of a design that cannot run: nothing is served, and it costs what it costs."""
    gpus = given.replicas * given.tp
    zeros = (
        "attempts finished late rejected goodput slo_share requests_per_s waiting_mean waiting_max running_mean "
        "running_max kv_usage_mean kv_usage_max preemptions hit_rate busy wasted_share steps step_mean_ms step_p50_ms "
        "step_p99_ms tokens_per_step prompt_tokens_mean output_tokens_mean prompt_tokens_per_s output_tokens_per_s "
        "scale_outs scale_ins thrash"
    )
    by_replica = "served busy waiting running ttft_ms step_ms hit_rate preemptions output_tokens"
    formulas = (
        "weights_gb kv_gb kv_kb_per_token kv_tokens kv_tokens_per_request seqs_that_fit batch_limit prompt_ms "
        "decode_step_ms running max_rate replicas_needed hit_rate"
    )
    return {
        "fits": False,
        "problem": problem,
        "requests": len(requests),
        "gave_up": len(requests),
        "error_share": 1.0,
        **dict.fromkeys(zeros.split(), 0.0),
        **_times(None, []),
        "gpus_mean": gpus,
        "gpus_max": gpus,
        "dollars_per_hour": _price(given) * gpus,
        "dollars_per_mtok": NEVER,
        "replica": {name: [0.0] * given.replicas for name in by_replica.split()},
        "series": {
            name: [] for name in "time_s rate waiting running kv_usage itl_ms ttft_ms replicas".split()
        },
        "formula": {
            **dict.fromkeys(formulas.split(), 0.0),
            "tpot_ms": NEVER,
            "ttft_ms": NEVER,
            "load": NEVER,
        },
    }
