"""E62: a changed model and its reference answer the same questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.zoo.gates import paired_difference, wilson
from quizzes.experiments import Context, experiment
from quizzes.experiments.registry import BadArguments


@dataclass(frozen=True)
class Paired:
    """Candidate minus reference, 95 % interval."""

    difference: Annotated[float, "share"]
    low: Annotated[float, "share"]
    high: Annotated[float, "share"]
    verdict: str
    """pass: even the bad end is above the limit. fail: even the good end is below it. Otherwise inconclusive."""
    unpaired_width: Annotated[float, "share"]
    """Width of the interval if the two had answered different questions."""
    paired_width: Annotated[float, "share"]


@experiment("E62")
def paired_eval(
    ctx: Context,
    *,
    cases: Annotated[int, Field(ge=1, le=100_000)] = 500,
    reference_right: Annotated[int, Field(ge=0, le=100_000)] = 450,
    won: Annotated[int, Field(ge=0, le=100_000)] = 4,
    lost: Annotated[int, Field(ge=0, le=100_000)] = 12,
    limit: Annotated[float, Field(gt=-1, lt=0)] = -0.02,
) -> Paired:
    """Did quantisation cost more than `limit`? `won`: only the new model is right, `lost`: only the reference."""
    if lost > reference_right or reference_right + won > cases:
        raise BadArguments(f"{won} won and {lost} lost do not fit {reference_right} right of {cases}")
    low, high = paired_difference(won, lost, cases)
    verdict = "pass" if low >= limit else "fail" if high < limit else "inconclusive"
    spread = 0.0
    for right in (reference_right, reference_right + won - lost):
        ends = wilson(right, cases)
        spread += (ends[1] - ends[0]) ** 2
    return Paired((won - lost) / cases, low, high, verdict, spread**0.5, high - low)
