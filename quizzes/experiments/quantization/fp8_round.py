"""FP8 E4M3: relative steps, a largest number of 448, and what a scale does to both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Rounded:
    stored: list[float]
    """The e4m3 numbers, before the scale is taken back."""
    restored: list[float]
    saturated: Annotated[int, "numbers"]
    """Beyond 448 after scaling."""
    zeros: Annotated[int, "numbers"]
    worst_relative: Annotated[float, "share"]
    """Among those that neither saturate nor become 0."""


@experiment("E31", "E32")
def fp8_round(
    ctx: Context,
    *,
    values: Annotated[list[Annotated[float, Field(ge=-1e6, le=1e6)]], Field(min_length=1, max_length=64)] = (
        0.3,
        17.0,
        -41.0,
        1000.0,
    ),
    scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0,
) -> Rounded:
    """stored = e4m3(x / scale), saturating, as the engine's fp8 weights, activations and KV cache are stored."""
    import torch

    from kernels.ops import FP8_MAX, to_e4m3

    x = torch.tensor(values, dtype=torch.float32)
    scaled = x / scale
    stored = to_e4m3(scaled).float()
    restored = stored * scale
    ok = [
        v != 0 and abs(s) <= FP8_MAX and t != 0
        for v, s, t in zip(values, scaled.tolist(), stored.tolist(), strict=True)
    ]
    relative = [abs(r - v) / abs(v) for r, v, good in zip(restored.tolist(), values, ok, strict=True) if good]
    return Rounded(
        stored=stored.tolist(),
        restored=restored.tolist(),
        saturated=int((scaled.abs() > FP8_MAX).sum()),
        zeros=int(((stored == 0) & (x != 0)).sum()),
        worst_relative=max(relative, default=0.0),
    )
