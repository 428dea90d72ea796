from engine.sim.memory import divide_memory
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.capacity._deploy import Dtype, Gpu, KvDtype, Parallel
from quizzes.experiments.simulated import deploy


@experiment("E03")
def concurrency(
    ctx: Context,
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

    Returns:
        Figures of the KV cache of all devices together.
        kv_tokens [tokens]
        tokens_each [tokens]: Tokens per request if the claimed requests share the cache evenly, in whole blocks.
        at_lengths [requests]: Requests at once, by length.
    """
    deployment = deploy(
        model,
        gpu,
        tp=tp,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        gpu_memory_utilization=utilisation,
        max_num_seqs=claimed,
    )
    block = deployment.block_size
    blocks = divide_memory(deployment).num_tokens // block
    return Result(
        kv_tokens=blocks * block,
        tokens_each=blocks // claimed * block,
        at_lengths=[blocks // -(-length // block) for length in lengths],
    )
