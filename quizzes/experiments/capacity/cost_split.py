"""E63: a fixed bill for our own GPUs, a price per token elsewhere, and traffic split between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

Dollars = Annotated[float, Field(ge=0, le=1e9)]


@dataclass(frozen=True)
class Split:
    """Per month."""

    managed_price: Annotated[float, "$"]
    """What the managed service asks for the whole traffic."""
    hybrid_total: Annotated[float, "$"]
    """Own GPUs, people, and the managed rest."""
    hybrid_saving: Annotated[float, "share"]
    """Against everything managed."""
    headline_saving: Annotated[float, "share"]
    """Own GPUs against the managed price of the same traffic: people and the rest are left out."""
    break_even_share: Annotated[float, "share"]
    """Of the traffic that must come home to pay for GPUs and people."""


@experiment("E63")
def cost_split(
    ctx: Context,
    *,
    self_hosted: Dollars = 9_200.0,
    managed_equivalent: Annotated[float, Field(gt=0, le=1e9)] = 28_000.0,
    served: Annotated[float, Field(gt=0, le=1)] = 0.85,
    people: Dollars = 0.0,
) -> Split:
    """What self-hosting part of the traffic saves in all.

    self_hosted: the bill for `served` of the traffic; managed_equivalent: what that same part costs as a service.
    """
    everything = managed_equivalent / served
    total = self_hosted + people + everything * (1 - served)
    return Split(
        managed_price=everything,
        hybrid_total=total,
        hybrid_saving=1 - total / everything,
        headline_saving=1 - self_hosted / managed_equivalent,
        break_even_share=(self_hosted + people) / everything,
    )
