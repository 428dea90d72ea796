from engine.sim import precision
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.memory._shapes import KvDtype, attention_shape, deployment_of


@experiment("E01")
def kv_bytes(
    ctx: Context,
    layers: int = arg(32, 1, 512),
    kv_heads: int = arg(8, 1, 512),
    head_dim: int = arg(128, 1, 1024),
    kv_dtype: KvDtype = "bfloat16",
    tokens: int = arg(4096, 1, 100_000_000),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Count KV bytes per token, block and sequence from a model's shape, as the engine's planner does.

    kv_heads: heads with their own keys and values; query heads do not matter. `auto` is a 16-bit model.

    Returns:
        Scales of a quantised cache included.
        per_token_per_layer, per_token, per_block [B]
        per_sequence [B]: Bytes of `tokens` tokens, without the unused slots of the last block.
        scale_bytes_per_token [B]: Part of per_token that is not keys and values.
    """
    deployment = deployment_of(attention_shape(layers, kv_heads, head_dim), kv_dtype)
    per_token = int(deployment.kv_bytes_per_token)
    scales = per_token - int(layers * 2 * kv_heads * head_dim * _width(kv_dtype))
    return Result(
        per_token_per_layer=per_token // layers,
        per_token=per_token,
        per_block=per_token * block_size,
        per_sequence=per_token * tokens,
        scale_bytes_per_token=scales,
    )


def _width(kv_dtype: str) -> int:
    return precision.kv_bytes(kv_dtype, precision.get_precision("bfloat16"))
