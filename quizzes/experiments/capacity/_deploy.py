"""Argument types that the sizing experiments share, and the deployment they describe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model

Gpu = Literal["a10g", "l4", "a100-40", "a100-80", "h100", "h200", "b200"]
Dtype = Literal["float32", "bfloat16", "float16", "fp8", "int8", "int4"]
KvDtype = Literal["auto", "bfloat16", "fp8", "int8_per_token_head"]
Parallel = Literal[1, 2, 4, 8, 16]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Utilisation = Annotated[float, Field(gt=0, le=1)]


def deploy(
    model: str,
    gpu: str,
    *,
    tp: int = 1,
    pp: int = 1,
    dtype: str = "bfloat16",
    kv_dtype: str = "auto",
    utilisation: float = 0.92,
    max_model_len: int = 8192,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
) -> Deployment:
    """The engine's own defaults unless told otherwise."""
    return Deployment(
        get_model(model),
        get_hardware(gpu),
        tp=tp,
        pp=pp,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        gpu_memory_utilization=utilisation,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
