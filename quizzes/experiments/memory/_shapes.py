"""Model shapes for KV arithmetic, and shared argument types."""

from __future__ import annotations

from typing import Literal

from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import ModelShape

KvDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8_per_token_head"]
"""Values of kv_cache_dtype that the engine knows; auto is the model's own type."""


def attention_shape(
    layers: int, kv_heads: int, head_dim: int, sliding_window: int | None = None
) -> ModelShape:
    """Return a model shape for KV arithmetic: as many query heads as KV heads, a vocabulary of one."""
    width = kv_heads * head_dim
    return ModelShape(
        "drawn",
        "drawn",
        layers,
        width,
        width,
        kv_heads,
        kv_heads,
        head_dim,
        1,
        1,
        sliding_window=sliding_window,
    )


def deployment_of(shape: ModelShape, kv_dtype: str, *, tp: int = 1, dtype: str = "bfloat16") -> Deployment:
    """Return a deployment whose KV bytes do not depend on its card."""
    return Deployment(shape, get_hardware("h100"), tp=tp, dtype=dtype, kv_cache_dtype=kv_dtype)
