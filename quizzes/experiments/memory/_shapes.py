"""Shapes that are not in the engine's list, and the argument types that several experiments share."""

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
    """A model of which only the KV cache matters: as many query heads as KV heads, and no vocabulary to speak of."""
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
    """A place to ask for bytes. They depend on no card, so any will do."""
    return Deployment(shape, get_hardware("h100"), tp=tp, dtype=dtype, kv_cache_dtype=kv_dtype)
