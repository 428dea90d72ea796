"""E62: how long a canary has to run before it can see what it is there to see."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.registry import BadArguments

CONFIDENCE, POWER = 0.95, 0.8


@dataclass(frozen=True)
class Canary:
    """A two-sided test of two shares at 95 % with power 80 %."""

    requests: Annotated[int, "requests"]
    """That the canary saw."""
    needed: Annotated[int, "requests"]
    """Per arm, to tell `bad` from `base`."""
    hours_needed: Annotated[float, "h"]
    """Until the canary has seen so many."""
    enough: bool


@experiment("E62")
def canary_size(
    ctx: Context,
    *,
    rate: Annotated[float, Field(gt=0, le=1e6)] = 2.0,
    share: Annotated[float, Field(gt=0, le=0.5)] = 0.1,
    hours: Annotated[float, Field(gt=0, le=10_000)] = 1.0,
    base: Annotated[float, Field(gt=0, lt=1)] = 0.01,
    bad: Annotated[float, Field(gt=0, lt=1)] = 0.015,
) -> Canary:
    """Requests that a canary of `share` of `rate` per second gathers in `hours`, and how many a test needs.

    base: the share of bad answers now; bad: the share that must not go unnoticed.
    """
    if base == bad:
        raise BadArguments("base and bad are equal: there is nothing to tell apart")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2), NormalDist().inv_cdf(POWER)
    mean = (base + bad) / 2
    pooled = z[0] * math.sqrt(2 * mean * (1 - mean))
    apart = z[1] * math.sqrt(base * (1 - base) + bad * (1 - bad))
    needed = math.ceil(((pooled + apart) / (bad - base)) ** 2)
    seen = int(rate * share * hours * 3600 + 1e-6)
    return Canary(seen, needed, needed / (rate * share * 3600), seen >= needed)
