"""E51: a rate falls; when does "below a threshold for some minutes" fire? The window of the rate decides with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Alert:
    """Minutes after the drop."""

    fires: bool
    fires_after_min: Annotated[int, "min"]
    """-1: never within the time looked at."""
    below_after_min: Annotated[int, "min"]
    """The windowed rate was first below the threshold; -1: never."""
    rate_at_end: Annotated[float, "share"]


@experiment("E51")
def alert_rule(
    ctx: Context,
    *,
    before: Annotated[float, Field(ge=0, le=1)] = 0.72,
    after: Annotated[float, Field(ge=0, le=1)] = 0.45,
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5,
    for_min: Annotated[int, Field(ge=0, le=240)] = 15,
    window_min: Annotated[int, Field(ge=1, le=240)] = 5,
    lasts_min: Annotated[int, Field(ge=1, le=2000)] = 600,
    queries_per_min: Annotated[int, Field(ge=1, le=100_000)] = 1000,
) -> Alert:
    """Hits and queries are counters that grow every minute; the rate is the increase of one over that of the other in
    the last `window_min` minutes. The rule is looked at every minute and must hold for `for_min` minutes, as
    Prometheus' `for` does. The hit rate falls from `before` to `after` at minute 0 and stays for `lasts_min`, then
    returns.
    """
    hits = [0.0]
    for minute in range(-window_min, lasts_min + window_min):
        rate = after if 0 <= minute < lasts_min else before
        hits.append(hits[-1] + rate * queries_per_min)
    since, fires, first_below = None, -1, -1
    rate = before
    for minute in range(1, lasts_min + window_min + 1):
        end = minute + window_min
        rate = (hits[end] - hits[end - window_min]) / (queries_per_min * window_min)
        if rate < threshold - 1e-12:
            since = minute if since is None else since
            first_below = minute if first_below < 0 else first_below
            if fires < 0 and minute - since >= for_min:
                fires = minute
        else:
            since = None
        if minute == lasts_min:
            at_end = rate
    return Alert(fires >= 0, fires, first_below, at_end)
