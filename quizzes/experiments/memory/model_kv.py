"""E01: KV bytes of named models, with tensor parallelism, windows and latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from engine.sim.models import ModelShape, get_model
from quizzes.experiments import Context, experiment
from quizzes.experiments.memory._shapes import KvDtype, Tokens, deployment_of


@dataclass(frozen=True)
class ModelKv:
    """Bytes of the cache of one model."""

    attention: str
    """MHA, GQA, MQA, MLA; +SWA with a sliding window."""
    layers: Annotated[int, "layers"]
    heads: Annotated[int, "heads"]
    kv_heads: Annotated[int, "heads"]
    per_token: Annotated[int, "B"]
    """On all GPUs together, copies counted as often as they are kept."""
    per_token_per_gpu: Annotated[float, "B"]
    per_token_per_layer: Annotated[float, "B"]
    """One copy."""
    copies: Annotated[float, "x"]
    """How often tensor parallelism keeps the same numbers."""
    tokens_held: Annotated[int, "tokens"]
    """Of a sequence of `tokens`: the window, if there is one."""
    per_sequence: Annotated[int, "B"]
    """On all GPUs together."""
    unshared_per_token: Annotated[int, "B"]
    """If every query head had keys and values of its own."""


@experiment("E01")
def model_kv(
    ctx: Context,
    *,
    model: str = "llama-3-70b",
    kv_dtype: KvDtype = "bfloat16",
    tokens: Tokens = 4096,
    tp: Literal[1, 2, 4, 8, 16, 32, 64] = 1,
) -> ModelKv:
    """KV bytes of a named model (`prep sim models` lists them) per token, GPU and sequence."""
    shape = get_model(model)
    one, here = deployment_of(shape, kv_dtype), deployment_of(shape, kv_dtype, tp=tp)
    held = shape.kv_tokens_held(tokens)
    return ModelKv(
        attention=shape.attention_kind,
        layers=shape.num_layers,
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        per_token=int(here.kv_bytes_per_token),
        per_token_per_gpu=here.kv_bytes_per_token_per_device,
        per_token_per_layer=one.kv_bytes_per_token / shape.num_layers,
        copies=here.kv_bytes_per_token / one.kv_bytes_per_token,
        tokens_held=held,
        per_sequence=int(held * here.kv_bytes_per_token),
        unshared_per_token=int(one.kv_bytes_per_token * _unshared(shape)),
    )


def _unshared(shape: ModelShape) -> float:
    """Elements with keys and values for every query head, over those that are kept."""
    if shape.mla is None:
        return shape.num_heads / shape.num_kv_heads
    full = shape.num_heads * (shape.mla.qk_nope_head_dim + shape.mla.qk_rope_head_dim + shape.mla.v_head_dim)
    return full / (shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim)
