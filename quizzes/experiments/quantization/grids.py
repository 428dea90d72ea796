"""Rounding to 4 and 8 bits: grids, blocks and scales."""

from typing import Any

from quizzes.experiments import Context, Result, arg, experiment


@experiment("E31")
def int8_grid(values: list[float] = arg([0.3, -0.2, 0.1, -41.0], -1e6, 1e6, count=(1, 64))) -> Result:
    """Round one vector to an int8 grid and see what an outlier costs the other values.

    Returns: As `ops.int8_linear` rounds a token's activations: symmetric, scale max|x| / 127, half to even.
        step: max|x| / 127: the distance of neighbouring levels.
        levels: Stored level of each number.
        zeros [numbers]: Numbers that were not 0 and are stored as 0.
        distinct [levels]; largest_error
        worst_relative [share]: Largest |restored - x| / |x|.
    """
    import torch

    from kernels.ops import dequantise_int8, quantise_int8

    x = torch.tensor([values], dtype=torch.float32)
    steps, scale = quantise_int8(x)
    levels, errors = steps[0].tolist(), (dequantise_int8(steps, scale) - x)[0].abs()
    return Result(
        step=float(scale[0]),
        levels=levels,
        zeros=sum(1 for level, value in zip(levels, values, strict=True) if value and not level),
        distinct=len(set(levels)),
        largest_error=float(errors.max()),
        worst_relative=max(
            (float(e) / abs(v) for e, v in zip(errors, values, strict=True) if v), default=0.0
        ),
    )


@experiment("E31", "E32")
def fp8_round(
    values: list[float] = arg([0.3, 17.0, -41.0, 1000.0], -1e6, 1e6, count=(1, 64)),
    scale: float = arg(1.0, above=0, high=1e6),
) -> Result:
    """Round values to FP8 E4M3 with a scale: stored = e4m3(x / scale), saturating at 448.

    Returns: The engine stores fp8 weights, activations and KV in this way.
        stored: The e4m3 numbers, before the scale is taken back.
        restored
        saturated [numbers]: Beyond 448 after scaling.
        zeros [numbers]
        worst_relative [share]: Among those that neither saturate nor become 0.
    """
    import torch

    from kernels.ops import FP8_MAX, to_e4m3

    x = torch.tensor(values, dtype=torch.float32)
    scaled = x / scale
    stored = to_e4m3(scaled).float()
    restored = stored * scale
    kept = (scaled.abs() <= FP8_MAX) & (stored != 0)
    pairs = zip(restored.tolist(), values, kept.tolist(), strict=True)
    return Result(
        stored=stored.tolist(),
        restored=restored.tolist(),
        saturated=int((scaled.abs() > FP8_MAX).sum()),
        zeros=int(((stored == 0) & (x != 0)).sum()),
        worst_relative=max((abs(r - v) / abs(v) for r, v, ok in pairs if ok and v), default=0.0),
    )


@experiment("E31", "E34")
def fp4_block(values: list[float] = arg([0.7, -1.9, 3.3, 5.0], -1000, 1000, count=(1, 16))) -> Result:
    """Round one block of weights to MXFP4 and NVFP4 (`engine/quant/fp4.py`).

    Returns: The values are the first of a block, filled up with zeros.
        mx_scale: A power of two (E8M0).
        mx_restored
        nv_scale: E4M3 block scale times the matrix's fp32 number.
        nv_restored
        mx_error, nv_error: Root of the mean squared error over the values.
        mx_bits, nv_bits [bits]: Per weight, scales included.
    """
    import torch

    from engine.quant.fp4 import FP4_BLOCKS, from_e8m0, quantise_mxfp4, quantise_nvfp4

    row = torch.tensor([values + [0.0] * (32 - len(values))])
    mx, nv = quantise_mxfp4(row), quantise_nvfp4(row)
    assert nv.tensor_scale is not None
    scales = {"mx": from_e8m0(mx.block_scale)[0, 0], "nv": nv.block_scale[0, 0].float() * nv.tensor_scale}
    restored = {name: weight.restore()[0, : len(values)] for name, weight in (("mx", mx), ("nv", nv))}
    errors = {name: (part - row[0, : len(values)]).square().mean().sqrt() for name, part in restored.items()}
    return Result(
        **{f"{name}_scale": float(scale) for name, scale in scales.items()},
        **{f"{name}_restored": part.tolist() for name, part in restored.items()},
        **{f"{name}_error": float(error) for name, error in errors.items()},
        **{f"{name}_bits": 4 + 8 / FP4_BLOCKS[f"{name}fp4"] for name in restored},
    )


@experiment("E33")
def awq_scales(
    ctx: Context,
    loud: float = arg(20.0, 1, 100),
    heavy: float = arg(3.0, 1, 100),
    columns: int = arg(64, 32, 256, multiple_of=16),
) -> Result:
    """Find which channels AWQ protects when a loud input competes with a large weight.

    Returns: The engine's scale search on a random matrix with a louder channel and another heavier one.
        protected: The channel with the largest scale.
        loud_channel: Channel with large inputs.
        heavy_channel: Channel with large weights.
        alpha: Exponent that the search chose; 0 is plain rounding.
        gain [x]: Output error of plain rounding over AWQ's.
        changes_with_inputs: Whether other inputs, with the same weights, give other scales.
    """
    import torch

    from engine.quant.quantizer.calibration import InputStatistics
    from engine.quant.quantizer.methods import search_scale

    generator = torch.Generator().manual_seed(ctx.seed)
    weight = torch.randn(columns, columns, generator=generator)
    inputs = torch.randn(512, columns, generator=generator)
    loud_channel, heavy_channel = 5, columns - 9
    weight[:, heavy_channel] *= heavy

    def search(channel: int) -> Any:
        x = inputs.clone()
        x[:, channel] *= loud
        statistics = InputStatistics.zeros(columns)
        statistics.add(x)
        return search_scale([weight], statistics, 16)

    choice, other = search(loud_channel), search(loud_channel + 7)
    return Result(
        protected=int(choice.scale.argmax()),
        loud_channel=loud_channel,
        heavy_channel=heavy_channel,
        alpha=choice.alpha,
        gain=choice.error_unscaled / choice.error,
        changes_with_inputs=not torch.equal(choice.scale, other.scale),
    )


@experiment("E32", "E01")
def kv_bytes(
    num_layers: int = arg(32, 1, 200),
    kv_heads: int = arg(8, 1, 128),
    head_dim: int = arg(128, 8, 512),
    block_size: int = arg(16, 1, 256),
) -> Result:
    """Count the bytes of a KV block by cache type, scales included (`engine/quant/kv_cache.py`).

    Returns:
        bf16 [B]: Per block.
        fp8, int8_per_token_head [B]
        int8_scale_bytes [B]: Bytes of the scales.
        fp8_ratio [x]: bf16 over fp8.
        int8_ratio [x]: bf16 over int8_per_token_head: how many times more tokens fit.
    """
    import torch

    from engine.quant.kv_cache import KVCacheLayout

    types = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8_per_token_head": torch.int8}
    made = {
        name: KVCacheLayout(num_layers, kv_heads, block_size, head_dim, kind) for name, kind in types.items()
    }
    sizes = {name: layout.bytes_per_block for name, layout in made.items()}
    return Result(
        **sizes,
        int8_scale_bytes=made["int8_per_token_head"].scale_bytes,
        fp8_ratio=sizes["bf16"] / sizes["fp8"],
        int8_ratio=sizes["bf16"] / sizes["int8_per_token_head"],
    )


@experiment("E32")
def kv_scales(
    ctx: Context,
    tokens: int = arg(128, 4, 1024),
    kv_heads: int = arg(4, 1, 16),
    head_dim: int = arg(32, 8, 128, multiple_of=8),
    loud_token: float = arg(30.0, 1, 1000),
    loud_head: float = arg(8.0, 1, 1000),
) -> Result:
    """Quantise keys and values to 8 bits under scales of different granularity: error and scale bytes.

    Gaussian keys and values; one token is `loud_token` times larger, one head `loud_head` times. The loud token's key
    points away from the queries, unlike an attention sink: it sets scales but gets no attention weight.

    Returns: Errors of the attention output of random queries, relative to attention over float keys and values.
        int8_tensor: One int8 scale for all keys, one for all values.
        int8_token: One for each token, all its heads together.
        int8_token_head: One for each token and head: the engine's int8_per_token_head.
        fp8_unscaled: The engine's fp8 cache (e4m3) with scales of 1.
        fp8_e5m2_unscaled: The engine's fp8_e5m2 cache with scales of 1: as many bytes, 2 bits of mantissa instead of 3.
        order: The three int8 ones, smallest error first.
        int8_beats_tensor: Scales for each token and head leave a smaller error than one for all.
        saturated, saturated_e5m2 [numbers]: Keys and values beyond 448 in the fp8 cache, beyond 57344 with e5m2.
    """
    import torch

    from kernels import ops
    from kernels.ops import dequantise_int8, quantise_int8

    generator = torch.Generator().manual_seed(ctx.seed)
    key, value = torch.randn(2, tokens, kv_heads, head_dim, generator=generator)
    query = torch.randn(16, kv_heads, head_dim, generator=generator)
    for x in (key, value):
        x[:, 0] *= loud_head
    value[tokens // 2] *= loud_token
    key[tokens // 2] = -loud_token * query.mean(0)

    def attend(key: Any, value: Any) -> Any:
        """Attend with every query to every key, head by head, in float64."""
        q, k, v = (x.double().transpose(0, 1) for x in (query, key, value))
        return (q @ k.transpose(1, 2) / head_dim**0.5).softmax(-1) @ v

    def rounded(x: Any, rows: int) -> Any:
        return dequantise_int8(*quantise_int8(x.reshape(rows, -1))).reshape(x.shape)

    def stored(dtype: Any) -> Any:
        pool = torch.zeros(2, 2, kv_heads, tokens, head_dim, dtype=dtype)
        ops.reshape_and_cache(key, value, pool, tokens + torch.arange(tokens), torch.ones(2))
        return attend(*(part.transpose(0, 1) for part in pool[1].float()))

    exact = attend(key, value)
    types = {"fp8_unscaled": torch.float8_e4m3fn, "fp8_e5m2_unscaled": torch.float8_e5m2}
    rows = {"int8_tensor": 1, "int8_token": tokens, "int8_token_head": tokens * kv_heads}
    attended = {name: attend(rounded(key, count), rounded(value, count)) for name, count in rows.items()}
    errors = {
        name: float((out - exact).norm() / exact.norm())
        for name, out in (attended | {name: stored(dtype) for name, dtype in types.items()}).items()
    }
    return Result(
        **errors,
        order=sorted(rows, key=errors.__getitem__),
        int8_beats_tensor=errors["int8_token_head"] < errors["int8_tensor"],
        saturated=int((torch.stack((key, value)).abs() > 448).sum()),
        saturated_e5m2=int((torch.stack((key, value)).abs() > 57344).sum()),
    )
