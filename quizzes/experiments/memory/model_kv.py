from typing import Literal

from engine.sim.models import ModelShape, get_model
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.memory._shapes import KvDtype, deployment_of


@experiment("E01")
def model_kv(
    ctx: Context,
    model: str = "llama-3-70b",
    kv_dtype: KvDtype = "bfloat16",
    tokens: int = arg(4096, 1, 100_000_000),
    tp: Literal[1, 2, 4, 8, 16, 32, 64] = 1,
) -> Result:
    """Count KV bytes of a named model per token, GPU and sequence, with tensor parallelism, windows and MLA.

    `prep sim models` lists the names.

    Returns:
        Bytes of the cache of one model.
        attention: MHA, GQA, MQA, MLA; +SWA with a sliding window.
        layers [layers]
        heads, kv_heads [heads]
        per_token [B]: Bytes on all GPUs together, with every copy counted.
        per_token_per_gpu [B]
        per_token_per_layer [B]: Bytes of one copy.
        copies [x]: Copies that tensor parallelism keeps of the same numbers.
        tokens_held [tokens]: Tokens kept of a sequence of `tokens`: at most the window.
        per_sequence [B]: Bytes on all GPUs together.
        unshared_per_token [B]: Bytes if every query head had its own keys and values.
    """
    shape = get_model(model)
    one, here = deployment_of(shape, kv_dtype), deployment_of(shape, kv_dtype, tp=tp)
    held = shape.kv_tokens_held(tokens)
    return Result(
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
