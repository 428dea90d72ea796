"""Memory plans of named models on named cards."""

from typing import Any, Literal

from engine.sim.memory import divide_memory
from prep_common.text import GIB
from quizzes.experiments import Result, arg, deploy, experiment

Gpu = Literal["a10g", "l4", "a100-40", "a100-80", "h100", "h200", "b200"]
Dtype = Literal["float32", "bfloat16", "float16", "fp8", "int8", "int4"]
KvDtype = Literal["auto", "bfloat16", "fp8", "int8_per_token_head"]
Parallel = Literal[1, 2, 4, 8, 16]


@experiment("E02")
def plan(
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    pp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    utilisation: float = arg(0.92, above=0, high=1),
    max_model_len: int = arg(8192, 1, 1_000_000),
    max_num_seqs: int = arg(256, 1, 1_000_000),
    max_num_batched_tokens: int = arg(8192, 1, 1_000_000),
) -> Result:
    """Plan the memory of a deployment: weights, runtime, activations, and the KV cache in the rest.

    Returns: Per device unless stated otherwise. Weights, KV and blocks are exact; activations are estimated.
        fits: One sequence of max_model_len has room in the cache.
        usable_gib, weights_gib [GiB]
        weights_gb [GB]: Weights of the whole model.
        runtime_gib, activations_gib [GiB]
        kv_budget_gib [GiB]: Negative: the weights alone are too large.
        kv_budget_total_gb [GB]: KV budget of all devices.
        kv_bytes_per_token [B]
        kv_tokens [tokens]: KV tokens of all sequences.
        max_concurrency [requests]: Sequences of max_model_len at once.
    """
    types: dict[str, Any] = {
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "gpu_memory_utilization": utilisation,
    }
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    deployment = deploy(model, gpu, tp=tp, pp=pp, max_model_len=max_model_len, **types, **limits)
    memory = divide_memory(deployment)
    return Result(
        fits=memory.kv_budget >= 0 and memory.num_tokens >= max_model_len,
        usable_gib=memory.usable / GIB,
        weights_gib=memory.weights / GIB,
        weights_gb=deployment.weight_bytes / 1e9,
        runtime_gib=memory.runtime / GIB,
        activations_gib=memory.activations / GIB,
        kv_budget_gib=memory.kv_budget / GIB,
        kv_budget_total_gb=memory.kv_budget * deployment.num_devices / 1e9,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        kv_tokens=memory.num_tokens,
        max_concurrency=memory.max_concurrency,
    )


@experiment("E02", "E35")
def plan_change(
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    utilisation: float = arg(0.92, above=0, high=1),
    max_num_seqs: int = arg(256, 1, 1_000_000),
    to_gpu: Gpu | None = None,
    to_tp: Parallel | None = None,
    to_dtype: Dtype | None = None,
    to_kv_dtype: KvDtype | None = None,
    to_utilisation: float | None = arg(None, above=0, high=1),
    to_max_num_seqs: int | None = arg(None, 1, 1_000_000),
) -> Result:
    """Compare the memory plans of a deployment before and after a change.

    Returns: Per device unless stated otherwise. The `to_` settings that are given replace the originals.
        weights_ratio [x]: Bytes before over bytes after, of the whole model.
        kv_bytes_ratio [x]: Per token, before over after, all devices.
        kv_tokens_before, kv_tokens_after [tokens]
        kv_tokens_ratio [x]: After over before; 0 if nothing fitted before.
        budget_before_gib, budget_after_gib [GiB]
    """
    now: dict[str, Any] = {
        "model": model,
        "hardware": gpu,
        "tp": tp,
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "gpu_memory_utilization": utilisation,
        "max_num_seqs": max_num_seqs,
    }
    changes = (None, to_gpu, to_tp, to_dtype, to_kv_dtype, to_utilisation, to_max_num_seqs)
    new = {name: value for name, value in zip(now, changes, strict=True) if value is not None}
    before, after = deploy(**now), deploy(**now | new)
    first, second = divide_memory(before), divide_memory(after)
    return Result(
        weights_ratio=before.weight_bytes / after.weight_bytes,
        kv_bytes_ratio=before.kv_bytes_per_token / after.kv_bytes_per_token,
        kv_tokens_before=first.num_tokens,
        kv_tokens_after=second.num_tokens,
        kv_tokens_ratio=second.num_tokens / first.num_tokens if first.num_tokens else 0.0,
        budget_before_gib=first.kv_budget / GIB,
        budget_after_gib=second.kv_budget / GIB,
    )


@experiment("E03")
def concurrency(
    claimed: int = arg(200, 1, 100_000),
    model: str = "llama-2-7b",
    gpu: Gpu = "a100-40",
    tp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    utilisation: float = arg(0.92, above=0, high=1),
    lengths: list[int] = arg([512, 1024, 2048], 1, 1_000_000, count=(1, 16)),
) -> Result:
    """Compute how many tokens each of `claimed` requests may have, and how many requests of given lengths fit.

    Returns: Figures of the KV cache of all devices together.
        kv_tokens [tokens]
        tokens_each [tokens]: Tokens per request if the claimed requests share the cache evenly, in whole blocks.
        at_lengths [requests]: Requests at once, by length.
    """
    types: dict[str, Any] = {
        "dtype": dtype,
        "kv_cache_dtype": kv_dtype,
        "gpu_memory_utilization": utilisation,
    }
    deployment = deploy(model, gpu, tp=tp, max_num_seqs=claimed, **types)
    block = deployment.block_size
    blocks = divide_memory(deployment).num_tokens // block
    return Result(
        kv_tokens=blocks * block,
        tokens_each=blocks // claimed * block,
        at_lengths=[blocks // -(-length // block) for length in lengths],
    )
