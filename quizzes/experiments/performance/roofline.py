from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.performance._floor import floor_of, load_of_rows


@experiment("E24", "E61")
def roofline(
    ctx: Context,
    model: str = "llama-3-8b",
    hardware: str = "h100",
    dtype: str = "bfloat16",
    rows: int = arg(1, 1, 100_000),
    tokens_per_row: int = arg(1, 1, 1_000_000),
    context: int = arg(1000, 0, 10_000_000),
    kv_cache_dtype: str = "auto",
) -> Result:
    """Place a step on the roofline of a device: bytes, arithmetic, and which is the limit.

    Uses the simulator's cost model at 100 % efficiency (Williams, Waterman, Patterson 2009). `rows` requests with
    `context` tokens in the cache compute `tokens_per_row` tokens each; 1 is decode.

    Returns:
        One step at the datasheet's rates. GB are 1e9 bytes, GFLOP 1e9.
        tokens [tokens]: Tokens through the linear layers.
        weight_gb [GB]: Read once: linear layers and output head.
        kv_gb [GB]: Read by attention.
        linear_gflop, attention_gflop [GFLOP]
        intensity [FLOP/B]: Arithmetic intensity of the linear layers.
        attention_intensity [FLOP/B]: Arithmetic intensity of attention on the KV that it reads.
        ridge [FLOP/B]: Ridge point of the device in the type that the linear layers compute in.
        bound: Limit of the linear layers: memory or compute.
        linear_ms, head_ms, attention_ms, step_ms [ms]
        tokens_per_s [tokens/s]: New tokens, one for each row and step.
        mfu [share]: Arithmetic done over what the device could do in that time: model FLOPs utilisation.
        mbu [share]: Bytes moved over what the memory could move: memory bandwidth utilisation.
    """
    floor, load = (
        floor_of(model, hardware, dtype, kv_cache_dtype),
        load_of_rows(rows, tokens_per_row, context),
    )
    weight_bytes, flops = floor.cost.bytes_and_flops(load)
    attention_flops, kv_bytes = floor.attention_flops(load), floor.kv_bytes(load)
    parts = floor.cost.parts(load)
    seconds = floor.cost.seconds(load)
    intensity = floor.cost.intensity(load)
    return Result(
        tokens=load.num_tokens,
        weight_gb=weight_bytes / 1e9,
        kv_gb=kv_bytes / 1e9,
        linear_gflop=flops / 1e9,
        attention_gflop=attention_flops / 1e9,
        intensity=intensity,
        attention_intensity=attention_flops / kv_bytes,
        ridge=floor.ridge,
        bound="compute" if intensity > floor.ridge else "memory",
        linear_ms=1e3 * parts["linear"],
        head_ms=1e3 * parts["head"],
        attention_ms=1e3 * parts["attention"],
        step_ms=1e3 * seconds,
        tokens_per_s=rows / seconds,
        mfu=(flops + attention_flops) / floor.peak / seconds,
        mbu=(weight_bytes + kv_bytes) / floor.bandwidth / seconds,
    )
