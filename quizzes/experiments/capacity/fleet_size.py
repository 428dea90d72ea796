"""E56: GPUs for a rate of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.sim.sizing import size
from quizzes.experiments import Context, experiment
from quizzes.experiments.capacity._deploy import Count, Dtype, Gpu, KvDtype, Parallel, Utilisation, deploy


@dataclass(frozen=True)
class Fleet:
    """By arithmetic, without queueing."""

    prefill_ms: Annotated[float, "ms"]
    """One prompt alone on a replica."""
    tpot_ms: Annotated[float, "ms"]
    """Step time of a decode batch."""
    batch: Annotated[int, "requests"]
    """That one replica decodes at once."""
    concurrent_decodes: Annotated[float, "requests"]
    """Little: rate x output x TPOT."""
    prefill_replicas: Annotated[float, "replicas"]
    decode_replicas: Annotated[float, "replicas"]
    prefill_gpus: Annotated[float, "GPUs"]
    decode_gpus: Annotated[float, "GPUs"]
    gpus: Annotated[int, "GPUs"]
    """Prefill and decode together, in whole replicas."""
    kv_gb_per_s: Annotated[float, "GB/s"]
    """Prompt KV that moves from prefill to decode if they are apart."""
    answer_ms: Annotated[float, "ms"]
    """Prefill and decode of one request, nobody queueing."""
    kv_at_once_gb: Annotated[float, "GB"]


@experiment("E56")
def fleet_size(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    rate: Annotated[float, Field(gt=0, le=1e6)] = 10_000.0,
    prompt: Annotated[int, Field(ge=1, le=100_000)] = 1000,
    output: Annotated[int, Field(ge=1, le=100_000)] = 200,
    tpot_limit_ms: Annotated[float, Field(gt=0, le=10_000)] | None = None,
    utilisation: Utilisation = 0.7,
    max_num_seqs: Count = 256,
) -> Fleet:
    """GPUs for `rate` requests per second: datasheets times an efficiency, Little's law, and the memory plan.

    tpot_limit_ms: the decode batch is cut until a step is not slower. An error says if one request alone is slower.
    """
    deployment = deploy(
        model,
        gpu,
        tp=tp,
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_model_len=prompt + output,
        max_num_seqs=min(max_num_seqs, 2048),
    )
    limit = None if tpot_limit_ms is None else tpot_limit_ms / 1000
    found = size(
        deployment, rate=rate, prompt=prompt, output=output, tpot_limit=limit, utilisation=utilisation
    )
    devices = deployment.num_devices
    return Fleet(
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
