"""E01: bytes of keys and values from a model's shape, as the engine's planner counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from quizzes.experiments import Context, experiment
from quizzes.experiments.memory._shapes import (
    BlockSize,
    HeadDim,
    Heads,
    KvDtype,
    Layers,
    Tokens,
    attention_shape,
    deployment_of,
)


@dataclass(frozen=True)
class KvBytes:
    """Scales of a quantised cache included."""

    per_token_per_layer: Annotated[int, "B"]
    per_token: Annotated[int, "B"]
    per_block: Annotated[int, "B"]
    per_sequence: Annotated[int, "B"]
    """Of `tokens` tokens, without the unused slots of the last block."""
    scale_bytes_per_token: Annotated[int, "B"]
    """Part of per_token that is not keys and values."""


@experiment("E01")
def kv_bytes(
    ctx: Context,
    *,
    layers: Layers = 32,
    kv_heads: Heads = 8,
    head_dim: HeadDim = 128,
    kv_dtype: KvDtype = "bfloat16",
    tokens: Tokens = 4096,
    block_size: BlockSize = 16,
) -> KvBytes:
    """KV bytes per token, block and sequence of a model shape.

    kv_heads are the heads that have keys and values of their own; query heads do not appear. `auto` is a 16-bit model.
    """
    deployment = deployment_of(attention_shape(layers, kv_heads, head_dim), kv_dtype)
    per_token = int(deployment.kv_bytes_per_token)
    scales = per_token - int(layers * 2 * kv_heads * head_dim * _width(kv_dtype))
    return KvBytes(per_token // layers, per_token, per_token * block_size, per_token * tokens, scales)


def _width(kv_dtype: str) -> int:
    from engine.sim.precision import get_precision, kv_bytes

    return kv_bytes(kv_dtype, get_precision("bfloat16"))
