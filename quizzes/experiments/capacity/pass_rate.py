"""E62: what a number of test cases can and cannot say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from engine.zoo.gates import wilson
from quizzes.experiments import Context, experiment
from quizzes.experiments.registry import BadArguments


@dataclass(frozen=True)
class PassRate:
    """95 % Wilson interval of a share, as the engine's quality gates compute it."""

    rate: Annotated[float, "share"]
    low: Annotated[float, "share"]
    high: Annotated[float, "share"]
    verdict: str
    """pass: the whole interval is on the good side of the gate. fail: none of it. Otherwise inconclusive."""
    errors: Annotated[int, "cases"]
    errors_allowed: Annotated[int, "cases"]
    """Most wrong cases with which the gate still passes; -1: it cannot pass with so few cases."""
    cases_needed: Annotated[int, "cases"]
    """Without a single error, so many prove the gate."""


@experiment("E62")
def pass_rate(
    ctx: Context,
    *,
    cases: Annotated[int, Field(ge=1, le=100_000)] = 200,
    right: Annotated[int, Field(ge=0, le=100_000)] = 198,
    gate: Annotated[float, Field(gt=0, lt=1)] = 0.99,
) -> PassRate:
    """Does `right` of `cases` prove a pass rate of at least `gate`, with 95 % confidence?"""
    if right > cases:
        raise BadArguments(f"{right} right of {cases} cases")
    low, high = wilson(right, cases)
    verdict = "pass" if low >= gate else "fail" if high < gate else "inconclusive"
    allowed = -1
    while allowed + 1 <= cases and wilson(cases - allowed - 1, cases)[0] >= gate:
        allowed += 1
    return PassRate(right / cases, low, high, verdict, cases - right, allowed, _needed(gate))


def _needed(gate: float) -> int:
    """Fewest cases, all right, whose interval is above the gate: it rises with the number, so halve."""
    low, high = 0, 1
    while wilson(high, high)[0] < gate:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wilson(middle, middle)[0] >= gate else (middle, high)
    return high
