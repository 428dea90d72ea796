"""E24: one step in two precisions. Half the bytes help where memory is the limit, twice the FLOP/s where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

HUGE = 1_000_000


@dataclass(frozen=True)
class Speedup:
    """Base over other: above 1, the other precision is faster."""

    flop_rate: Annotated[float, "x"]
    """Peak FLOP/s of other over base, on this device."""
    weight_bytes: Annotated[float, "x"]
    """Bytes per weight of base over other, scales included."""
    linear: Annotated[float, "x"]
    """Time of the linear layers."""
    linear_limit: Annotated[float, "x"]
    """The same for a step of so many tokens that arithmetic limits both."""
    step: Annotated[float, "x"]
    """Time of the whole step, attention and the 16-bit head included."""
    base_bound: str
    other_bound: str


@experiment("E24", "E31")
def precision_speedup(
    ctx: Context,
    *,
    model: str = "llama-3-8b",
    hardware: str = "h100",
    base: str = "bfloat16",
    other: str = "fp8",
    rows: Annotated[int, Field(ge=1, le=100_000)] = 1,
    tokens_per_row: Annotated[int, Field(ge=1, le=1_000_000)] = 1,
    context: Annotated[int, Field(ge=0, le=1_000_000)] = 1000,
) -> Speedup:
    """How much faster `other` weights make one step at the datasheet's rates. KV stays 16 bits wide."""
    from quizzes.experiments.performance._floor import floor_of, load_of_rows

    load, huge = load_of_rows(rows, tokens_per_row, context), load_of_rows(1, HUGE, 0)
    a, b = (floor_of(model, hardware, dtype, "bfloat16") for dtype in (base, other))
    bounds = ["compute" if f.cost.intensity(load) > f.ridge else "memory" for f in (a, b)]
    return Speedup(
        flop_rate=b.peak / a.peak,
        weight_bytes=a.deployment.precision.weight_bytes / b.deployment.precision.weight_bytes,
        linear_limit=a.cost.parts(huge)["linear"] / b.cost.parts(huge)["linear"],
        linear=a.cost.parts(load)["linear"] / b.cost.parts(load)["linear"],
        step=a.cost.seconds(load) / b.cost.seconds(load),
        base_bound=bounds[0],
        other_bound=bounds[1],
    )
