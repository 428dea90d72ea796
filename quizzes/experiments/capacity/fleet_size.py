from engine.sim.sizing import size
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.capacity._deploy import Dtype, Gpu, KvDtype, Parallel
from quizzes.experiments.simulated import deploy


@experiment("E56")
def fleet_size(
    ctx: Context,
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

    Returns:
        Computed without queueing.
        prefill_ms [ms]: One prompt alone on a replica.
        tpot_ms [ms]: Step time of a decode batch.
        batch [requests]: Requests that one replica decodes at once.
        concurrent_decodes [requests]: Little: rate x output x TPOT.
        prefill_replicas, decode_replicas [replicas]
        prefill_gpus, decode_gpus [GPUs]
        gpus [GPUs]: Prefill and decode together, in whole replicas.
        kv_gb_per_s [GB/s]: Prompt KV that moves from prefill to decode if they are apart.
        answer_ms [ms]: Prefill and decode of one request without queueing.
        kv_at_once_gb [GB]
    """
    deployment = deploy(
        model,
        gpu,
        tp=tp,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        max_model_len=prompt + output,
        max_num_seqs=min(max_num_seqs, 2048),
    )
    limit = None if tpot_limit_ms is None else tpot_limit_ms / 1000
    found = size(
        deployment, rate=rate, prompt=prompt, output=output, tpot_limit=limit, utilisation=utilisation
    )
    devices = deployment.num_devices
    return Result(
        prefill_ms=1000 * found.prefill_seconds,
        tpot_ms=1000 * found.tpot,
        batch=found.batch,
        concurrent_decodes=found.concurrent_decodes,
        prefill_replicas=found.prefill_replicas,
        decode_replicas=found.decode_replicas,
        prefill_gpus=found.prefill_replicas * devices,
        decode_gpus=found.decode_replicas * devices,
        gpus=found.gpus,
        kv_gb_per_s=found.kv_bytes_per_s / 1e9,
        answer_ms=1000 * (found.prefill_seconds + (output - 1) * found.tpot),
        kv_at_once_gb=found.kv_bytes_at_once / 1e9,
    )
