"""Sizes and prices of fleets, from throughput and latency."""

from typing import Literal

from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.hardware import get_link
from engine.sim.sizing import latency_of, size, slo_budget
from quizzes.experiments import Result, arg, deploy, experiment
from quizzes.experiments.capacity.plans import Dtype, Gpu, KvDtype, Parallel


@experiment("E56")
def fleet_size(
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    rate: float = arg(10_000.0, above=0, high=1e6),
    prompt: int = arg(1000, 1, 100_000),
    output: int = arg(200, 1, 100_000),
    tpot_limit_ms: float | None = arg(None, above=0, high=10_000),
    utilisation: float = arg(0.7, above=0, high=1),
    max_num_seqs: int = arg(256, 1, 1_000_000),
) -> Result:
    """Size a fleet of GPUs for `rate` requests per second.

    Uses datasheets times an efficiency, Little's law and the memory plan. tpot_limit_ms: the decode batch shrinks
    until a step meets it; an error tells if even one request is slower.

    Returns: Computed without queueing.
        prefill_ms [ms]: One prompt alone on a replica.
        tpot_ms [ms]: Step time of a decode batch.
        batch [requests]: Requests that one replica decodes at once.
        concurrent_decodes [requests]: Little: rate x output x TPOT.
        prefill_replicas, decode_replicas [replicas]; prefill_gpus, decode_gpus [GPUs]
        gpus [GPUs]: Prefill and decode together, in whole replicas.
        kv_gb_per_s [GB/s]: Prompt KV that moves from prefill to decode if they are apart.
        answer_ms [ms]: Prefill and decode of one request without queueing.
        kv_at_once_gb [GB]
    """
    limits = {"max_model_len": prompt + output, "max_num_seqs": min(max_num_seqs, 2048)}
    deployment = deploy(model, gpu, tp=tp, dtype=dtype, kv_cache_dtype=kv_dtype, **limits)
    limit = None if tpot_limit_ms is None else tpot_limit_ms / 1000
    plan = size(
        deployment, rate=rate, prompt=prompt, output=output, tpot_limit=limit, utilisation=utilisation
    )
    replicas = {"prefill": plan.prefill_replicas, "decode": plan.decode_replicas}
    return Result(
        prefill_ms=1000 * plan.prefill_seconds,
        tpot_ms=1000 * plan.tpot,
        batch=plan.batch,
        concurrent_decodes=plan.concurrent_decodes,
        **{f"{name}_replicas": count for name, count in replicas.items()},
        **{f"{name}_gpus": count * deployment.num_devices for name, count in replicas.items()},
        gpus=plan.gpus,
        kv_gb_per_s=plan.kv_bytes_per_s / 1e9,
        answer_ms=1000 * (plan.prefill_seconds + (output - 1) * plan.tpot),
        kv_at_once_gb=plan.kv_bytes_at_once / 1e9,
    )


@experiment("E63")
def tiers(
    model: str = "llama-3-8b",
    small_model: str = "qwen3-0.6b",
    gpu: Gpu = "h100",
    rate: float = arg(100.0, above=0, high=100_000),
    times: float = arg(10.0, 1, 1000),
    cached: float = arg(0.35, 0, 1),
    to_small: float = arg(0.5, 0, 1),
    prompt: int = arg(1000, 1, 100_000),
    output: int = arg(200, 1, 10_000),
) -> Result:
    """Size a fleet for `times` the traffic behind a response cache and a router to a smaller model.

    cached: share of requests answered without a model. to_small: share of the rest that the small model serves.

    Returns: GPUs by arithmetic, not rounded to machines.
        gpus_now, gpus_later, gpus_later_untiered [GPUs]
        growth [x]: gpus_later / gpus_now.
        large_share [share]: Share of the requests that still reach the large model.
    """

    def gpus(name: str, requests: float) -> float:
        if not requests:
            return 0.0
        deployment = deploy(name, gpu, max_model_len=prompt + output)
        plan = size(deployment, rate=requests, prompt=prompt, output=output)
        return plan.replicas * deployment.num_devices

    large = (1 - cached) * (1 - to_small)
    now = gpus(model, rate)
    later = gpus(model, rate * times * large) + gpus(small_model, rate * times * (1 - cached) * to_small)
    return Result(
        gpus_now=now,
        gpus_later=later,
        gpus_later_untiered=gpus(model, rate * times),
        growth=later / now,
        large_share=large,
    )


@experiment("E56")
def kv_handoff(
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    kv_dtype: KvDtype = "auto",
    prompt: int = arg(1000, 1, 1_000_000),
    link: Literal["pcie3", "pcie4", "pcie5", "nvlink4", "ib-hdr", "ib-ndr", "ethernet-100g"] = "ib-ndr",
) -> Result:
    """Compare the time to send a prompt's KV from a prefill to a decode machine with the time to compute it.

    Returns: Figures of one prompt. Each GPU of the replica sends its own part over its own link.
        kv_mb [MB]: KV of the whole prompt, all GPUs.
        transfer_ms, prefill_ms [ms]
        share_of_ttft [share]: transfer / (prefill + transfer), nothing overlapped.
    """
    deployment = deploy(model, gpu, holds=prompt, tp=tp, kv_cache_dtype=kv_dtype, max_model_len=prompt)
    cost = CostModel(deployment)
    prefill = cost.seconds(StepLoad(1, prompt, 1, 0, pairs_of(0, prompt, cost.window), prompt))
    held = deployment.model.kv_tokens_held(prompt)
    transfer = get_link(link).seconds(held * deployment.kv_bytes_per_token_per_device)
    return Result(
        kv_mb=held * deployment.kv_bytes_per_token / 1e6,
        transfer_ms=1000 * transfer,
        prefill_ms=1000 * prefill,
        share_of_ttft=transfer / (prefill + transfer),
    )


@experiment("E63")
def gpus_for_speedup(
    load: float = arg(10_000.0, above=0, high=1e9),
    per_gpu: float = arg(500.0, above=0, high=1e9),
    speedup: float = arg(2.5, 1, 1000),
    saving: float = arg(0.4, 0, below=1),
) -> Result:
    """Compute the GPUs that a speed-up saves at a given load.

    Returns: For the same load. Each GPU serves `per_gpu` before and `speedup` times as much after.
        gpus_before, gpus_after [GPUs]
        saved [share]: Share of the GPUs saved, not rounded to whole ones.
        speedup_for_saving [x]: The speed-up that `saving` would need.
    """
    return Result(
        gpus_before=-int(-load // per_gpu),
        gpus_after=-int(-load // (per_gpu * speedup)),
        saved=1 - 1 / speedup,
        speedup_for_saving=1 / (1 - saving),
    )


@experiment("E63")
def cost_split(
    self_hosted: float = arg(9_200.0, 0, 1e9),
    managed_equivalent: float = arg(28_000.0, above=0, high=1e9),
    served: float = arg(0.85, above=0, high=1),
    people: float = arg(0.0, 0, 1e9),
) -> Result:
    """Compute the savings from self-hosting part of the traffic, with the rest on a managed service.

    self_hosted: the bill for `served` of the traffic; managed_equivalent: the price of that part as a service.

    Returns: Per month.
        managed_price [$]: Price of the whole traffic on the managed service.
        hybrid_total [$]: Own GPUs, people, and the managed rest.
        hybrid_saving [share]: Saving against the managed price.
        headline_saving [share]: GPU bill against the managed price of the same traffic, without people and the rest.
        break_even_share [share]: Share of the traffic that must be self-hosted to pay for GPUs and people.
    """
    everything = managed_equivalent / served
    total = self_hosted + people + everything * (1 - served)
    return Result(
        managed_price=everything,
        hybrid_total=total,
        hybrid_saving=1 - total / everything,
        headline_saving=1 - self_hosted / managed_equivalent,
        break_even_share=(self_hosted + people) / everything,
    )


@experiment("E54")
def slo_tokens(
    ttft_ms: float = arg(180.0, 0, 3_600_000),
    tpot_ms: float = arg(15.0, above=0, high=100_000),
    limit_ms: float = arg(2000.0, 0, 3_600_000),
    hops_ms: list[float] = arg([], 0, 3_600_000, count=(0, 32)),
    answer: int = arg(300, 1, 1_000_000),
) -> Result:
    """Compute how many output tokens fit into an end-to-end latency limit.

    hops_ms: latency of the components in front of the engine.

    Returns: latency of n tokens = hops + TTFT + (n - 1) x TPOT.
        hops_ms [ms]
        tokens [tokens]: Output tokens that fit into the limit; 0: not even the first.
        latency_ms [ms]: Time until the last of `answer` tokens.
        meets: latency_ms is within the limit.
        tpot_needed_ms [ms]: The TPOT at which `answer` tokens would just fit; negative: none would.
    """
    hops = sum(hops_ms)
    seconds = {"ttft": ttft_ms / 1000, "tpot": tpot_ms / 1000, "hops": hops / 1000}
    budget = slo_budget(limit=limit_ms / 1000, **seconds)
    latency = 1000 * latency_of(answer, **seconds)
    left = limit_ms - hops - ttft_ms
    return Result(
        hops_ms=hops,
        tokens=budget.tokens,
        latency_ms=latency,
        meets=latency <= limit_ms + 1e-6,
        tpot_needed_ms=left / max(1, answer - 1),
    )
