from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.memory._shapes import KvDtype, attention_shape, deployment_of


@experiment("E01")
def hybrid_kv(
    ctx: Context,
    full_layers: int = arg(8, 1, 512),
    window_layers: int = arg(40, 1, 512),
    window: int = arg(1024, 1, 1_000_000),
    kv_heads: int = arg(8, 1, 512),
    head_dim: int = arg(128, 1, 1024),
    kv_dtype: KvDtype = "bfloat16",
    tokens: int = arg(32_768, 1, 100_000_000),
) -> Result:
    """Count KV bytes of a sequence when some layers attend to everything and others to a sliding window.

    An ideal hybrid manager keeps only what can still be read; blocks and lookahead add a little.

    Returns:
        Bytes of one sequence.
        full_layers_bytes, window_layers_bytes, hybrid_bytes [B]
        all_full_bytes [B]: Bytes if every layer kept every token.
        saving [share]
    """

    def bytes_of(layers: int, sliding_window: int | None) -> int:
        shape = attention_shape(layers, kv_heads, head_dim, sliding_window)
        return int(deployment_of(shape, kv_dtype).kv_bytes_per_token * shape.kv_tokens_held(tokens))

    full, windowed = bytes_of(full_layers, None), bytes_of(window_layers, window)
    everything = bytes_of(full_layers + window_layers, None)
    return Result(
        full_layers_bytes=full,
        window_layers_bytes=windowed,
        hybrid_bytes=full + windowed,
        all_full_bytes=everything,
        saving=1 - (full + windowed) / everything,
    )
