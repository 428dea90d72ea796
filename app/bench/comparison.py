"""Compare a simulation with live runs: errors of medians, beside the spread of the live rounds.

Live rounds differ, so their spread stands next to the error: no model is nearer to the engine than the engine is to
itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass
class Figure:
    """One figure of both sides, by round. `bar`: the largest allowed error."""

    name: str
    live: list[float] = field(default_factory=list)
    simulated: list[float] = field(default_factory=list)
    bar: float = 0.15

    @property
    def live_median(self) -> float:
        return median(self.live)

    @property
    def simulated_median(self) -> float:
        return median(self.simulated)

    @property
    def error(self) -> float:
        """(simulated - live) / live of the medians; 0 or 1 if the live figure is 0."""
        simulated, live = self.simulated_median, self.live_median
        return (simulated - live) / live if live else float(simulated != live)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median of the live rounds. An error smaller than this means little."""
        return (max(self.live) - min(self.live)) / (self.live_median or 1.0)

    @property
    def is_within(self) -> bool:
        return abs(self.error) <= self.bar

    @property
    def is_noisy(self) -> bool:
        """Whether live rounds differ by more than twice the bar, so that the machine decides the result."""
        return self.spread > 2 * self.bar


def as_json(figure: Figure) -> dict[str, Any]:
    """Return the fields of a figure and what follows from them."""
    names = ("live_median", "simulated_median", "error", "spread", "is_within")
    return {**vars(figure), **{name: getattr(figure, name) for name in names}}
