"""TTFT and TPOT of a service against its load, with the plan's replicas, by the formulas of the steady state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.debugger.capacity.figure import Capacity
from engine.sim.steady_state import Replica, SteadyState

NUM_POINTS = 60
LAST = 0.995
"""The last point, as a share of the maximum rate, where the queue begins to grow without bound."""


@dataclass(frozen=True)
class LoadCurves:
    """Means, in milliseconds, against requests per second of the whole service."""

    ttft: list[tuple[float, float]]
    tpot: list[tuple[float, float]]
    most: float
    """The rate from which the queues grow without bound."""
    within_ttft: float
    """The largest rate that meets the limit of TTFT; 0 if none does."""
    within_tpot: float


def load_curves(capacity: Capacity) -> LoadCurves:
    """Compute the curves of a scenario that fits."""
    scenario, count = capacity.scenario, capacity.value("replicas")
    replica = Replica(scenario, capacity.value("batch_limit"))
    most = replica.most_requests_per_s()
    free = [1 - number / NUM_POINTS for number in range(1, NUM_POINTS + 1)]
    shares = [1e-6, *(LAST * (1 - share**2) for share in free)]  # closer together where the curves turn up
    states = [replica.at(share * most) for share in shares]
    rates = [count * state.rate for state in states]

    def within(milliseconds: Callable[[SteadyState], float], limit: float) -> float:
        """Return the largest rate of the service within a limit, by bisection between two points of the curve."""
        low, high = 0.0, most
        for state in states:
            if milliseconds(state) > limit:
                high = state.rate
                break
            low = state.rate
        if not low:
            return 0.0
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if milliseconds(replica.at(middle)) <= limit else (low, middle)
        return count * low

    return LoadCurves(
        ttft=[(rate, _ttft(state)) for rate, state in zip(rates, states, strict=True)],
        tpot=[(rate, _tpot(state)) for rate, state in zip(rates, states, strict=True)],
        most=count * most,
        within_ttft=within(_ttft, scenario.ttft_ms),
        within_tpot=within(_tpot, scenario.tpot_ms),
    )


def _ttft(state: SteadyState) -> float:
    return 1000 * state.ttft


def _tpot(state: SteadyState) -> float:
    return 1000 * state.step
