"""E24: a step on the roofline (Williams, Waterman, Patterson 2009): bytes, arithmetic, and which is the limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Point:
    """One step at the datasheet's rates. GB are 1e9 bytes, GFLOP 1e9."""

    tokens: Annotated[int, "tokens"]
    """That go through the linear layers."""
    weight_gb: Annotated[float, "GB"]
    """Read once: linear layers and output head."""
    kv_gb: Annotated[float, "GB"]
    """Read by attention."""
    linear_gflop: Annotated[float, "GFLOP"]
    attention_gflop: Annotated[float, "GFLOP"]
    intensity: Annotated[float, "FLOP/B"]
    """Of the linear layers."""
    attention_intensity: Annotated[float, "FLOP/B"]
    """Of attention against the KV that it reads."""
    ridge: Annotated[float, "FLOP/B"]
    """Of the device in the type that the linear layers compute in."""
    bound: str
    """What limits the linear layers: memory or compute."""
    linear_ms: Annotated[float, "ms"]
    head_ms: Annotated[float, "ms"]
    attention_ms: Annotated[float, "ms"]
    step_ms: Annotated[float, "ms"]
    tokens_per_s: Annotated[float, "tokens/s"]
    """New tokens, one for each row and step."""
    mfu: Annotated[float, "share"]
    """Arithmetic done over what the device could do in that time: model FLOPs utilisation."""
    mbu: Annotated[float, "share"]
    """Bytes moved over what the memory could move: memory bandwidth utilisation."""


@experiment("E24", "E61")
def roofline(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    hardware: str = "h100",
    dtype: str = "bfloat16",
    rows: Annotated[int, Field(ge=1, le=100_000)] = 1,
    tokens_per_row: Annotated[int, Field(ge=1, le=1_000_000)] = 1,
    context: Annotated[int, Field(ge=0, le=10_000_000)] = 1000,
    kv_cache_dtype: str = "auto",
) -> Point:
    """Where a step lies on the roofline of a device, by the simulator's cost model at 100 % efficiency.

    `rows` requests with `context` tokens in the cache compute `tokens_per_row` tokens each: 1 is decode.
    """
    from quizzes.experiments.performance._floor import floor_of, load_of_rows

    floor, load = (
        floor_of(model, hardware, dtype, kv_cache_dtype),
        load_of_rows(rows, tokens_per_row, context),
    )
    weight_bytes, flops = floor.cost.bytes_and_flops(load)
    attention_flops, kv_bytes = floor.attention_flops(load), floor.kv_bytes(load)
    parts = floor.cost.parts(load)
    seconds = floor.cost.seconds(load)
    intensity = floor.cost.intensity(load)
    return Point(
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
