"""E31: one vector on one int8 grid: what an outlier leaves of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Grid:
    step: float
    """max|x| / 127: the distance of neighbouring levels."""
    levels: list[int]
    """What each number is stored as."""
    zeros: Annotated[int, "numbers"]
    """Numbers that were not 0 and are stored as 0."""
    distinct: Annotated[int, "levels"]
    largest_error: float
    worst_relative: Annotated[float, "share"]
    """Largest |restored - x| / |x|."""


@experiment("E31")
def int8_grid(
    ctx: Context,
    *,
    values: Annotated[list[Annotated[float, Field(ge=-1e6, le=1e6)]], Field(min_length=1, max_length=64)] = (
        0.3,
        -0.2,
        0.1,
        -41.0,
    ),
) -> Grid:
    """Round a vector as `ops.int8_linear` rounds a token's activations: symmetric, scale max|x| / 127, half to even."""
    import torch

    from kernels.ops import dequantise_int8, quantise_int8

    x = torch.tensor([values], dtype=torch.float32)
    steps, scale = quantise_int8(x)
    restored = dequantise_int8(steps, scale)[0]
    levels = steps[0].tolist()
    errors = (restored - x[0]).abs()
    relative = [float(e) / abs(v) for e, v in zip(errors, values, strict=True) if v]
    return Grid(
        step=float(scale[0]),
        levels=levels,
        zeros=sum(1 for level, value in zip(levels, values, strict=True) if value and not level),
        distinct=len(set(levels)),
        largest_error=float(errors.max()),
        worst_relative=max(relative, default=0.0),
    )
