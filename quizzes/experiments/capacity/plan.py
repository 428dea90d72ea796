from engine.sim.memory import divide_memory
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.capacity._deploy import Dtype, Gpu, KvDtype, Parallel
from quizzes.experiments.simulated import deploy


@experiment("E02")
def plan(
    ctx: Context,
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

    Returns:
        Per device unless stated otherwise. Weights, KV and blocks are exact; activations are estimated.
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
    deployment = deploy(
        model,
        gpu,
        tp=tp,
        pp=pp,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        gpu_memory_utilization=utilisation,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    found = divide_memory(deployment)
    gib = 2**30
    return Result(
        fits=found.kv_budget >= 0 and found.num_tokens >= max_model_len,
        usable_gib=found.usable / gib,
        weights_gib=found.weights / gib,
        weights_gb=deployment.weight_bytes / 1e9,
        runtime_gib=found.runtime / gib,
        activations_gib=found.activations / gib,
        kv_budget_gib=found.kv_budget / gib,
        kv_budget_total_gb=found.kv_budget * deployment.num_devices / 1e9,
        kv_bytes_per_token=found.kv_bytes_per_token,
        kv_tokens=found.num_tokens,
        max_concurrency=found.max_concurrency,
    )
