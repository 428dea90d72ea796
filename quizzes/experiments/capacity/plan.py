"""E02: what a card has left for KV once weights, runtime and activations have theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from engine.sim.memory import divide_memory
from quizzes.experiments import Context, experiment
from quizzes.experiments.capacity._deploy import Count, Dtype, Gpu, KvDtype, Parallel, Utilisation, deploy


@dataclass(frozen=True)
class Plan:
    """Per device unless it says otherwise. Weights, KV and blocks are exact; activations are the engine's estimate."""

    fits: bool
    """One sequence of max_model_len has room in the cache."""
    usable_gib: Annotated[float, "GiB"]
    weights_gib: Annotated[float, "GiB"]
    weights_gb: Annotated[float, "GB"]
    """Of the whole model."""
    runtime_gib: Annotated[float, "GiB"]
    activations_gib: Annotated[float, "GiB"]
    kv_budget_gib: Annotated[float, "GiB"]
    """Negative: the weights alone are too large."""
    kv_budget_total_gb: Annotated[float, "GB"]
    """Of all devices together."""
    kv_bytes_per_token: Annotated[float, "B"]
    kv_tokens: Annotated[int, "tokens"]
    """Of all sequences together."""
    max_concurrency: Annotated[float, "requests"]
    """Sequences of max_model_len at once."""


@experiment("E02")
def plan(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    gpu: Gpu = "h100",
    tp: Parallel = 1,
    pp: Parallel = 1,
    dtype: Dtype = "bfloat16",
    kv_dtype: KvDtype = "auto",
    utilisation: Utilisation = 0.92,
    max_model_len: Count = 8192,
    max_num_seqs: Count = 256,
    max_num_batched_tokens: Count = 8192,
) -> Plan:
    """The engine's memory plan of a deployment: weights, runtime, activations, and the KV cache in the rest."""
    deployment = deploy(
        model,
        gpu,
        tp=tp,
        pp=pp,
        dtype=dtype,
        kv_dtype=kv_dtype,
        utilisation=utilisation,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    found = divide_memory(deployment)
    gib = 2**30
    return Plan(
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
