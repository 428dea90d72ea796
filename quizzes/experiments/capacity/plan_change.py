from typing import Any

from engine.sim.memory import divide_memory
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.capacity._deploy import Dtype, Gpu, KvDtype, Parallel
from quizzes.experiments.simulated import deploy


@experiment("E02", "E35")
def plan_change(
    ctx: Context,
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

    The `to_` settings that are given replace the originals.

    Returns:
        Per device unless stated otherwise.
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
    new = {
        "hardware": to_gpu,
        "tp": to_tp,
        "dtype": to_dtype,
        "kv_cache_dtype": to_kv_dtype,
        "gpu_memory_utilization": to_utilisation,
        "max_num_seqs": to_max_num_seqs,
    }
    before = deploy(**now)
    after = deploy(**now | {name: value for name, value in new.items() if value is not None})
    first, second = divide_memory(before), divide_memory(after)
    return Result(
        weights_ratio=before.weight_bytes / after.weight_bytes,
        kv_bytes_ratio=before.kv_bytes_per_token / after.kv_bytes_per_token,
        kv_tokens_before=first.num_tokens,
        kv_tokens_after=second.num_tokens,
        kv_tokens_ratio=second.num_tokens / first.num_tokens if first.num_tokens else 0.0,
        budget_before_gib=first.kv_budget / 2**30,
        budget_after_gib=second.kv_budget / 2**30,
    )
