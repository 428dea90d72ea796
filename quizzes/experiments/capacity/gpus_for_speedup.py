"""E63: a speed-up, and the GPUs that it saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Saved:
    """For the same load."""

    gpus_before: Annotated[int, "GPUs"]
    gpus_after: Annotated[int, "GPUs"]
    saved: Annotated[float, "share"]
    """Of the GPUs, not rounded to whole ones."""
    speedup_for_saving: Annotated[float, "x"]
    """The speed-up that `saving` would need."""


@experiment("E63")
def gpus_for_speedup(
    ctx: Context,
    *,
    load: Annotated[float, Field(gt=0, le=1e9)] = 10_000.0,
    per_gpu: Annotated[float, Field(gt=0, le=1e9)] = 500.0,
    speedup: Annotated[float, Field(ge=1, le=1000)] = 2.5,
    saving: Annotated[float, Field(ge=0, lt=1)] = 0.4,
) -> Saved:
    """GPUs for `load` when each does `per_gpu`, and when each does `speedup` times as much."""
    return Saved(
        gpus_before=-int(-load // per_gpu),
        gpus_after=-int(-load // (per_gpu * speedup)),
        saved=1 - 1 / speedup,
        speedup_for_saving=1 / (1 - saving),
    )
