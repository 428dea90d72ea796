"""A plan by simulation: a slice of the fleet with its share of the peak, through the real scheduler and router."""

from __future__ import annotations

from collections.abc import Callable

from app.debugger.capacity.check import Gap, compare, sensible_count
from app.debugger.capacity.figure import Capacity, ms
from engine.sim.calibration import calibrated_rates
from engine.sim.engine import SimEngine
from engine.sim.fleet import Fleet, FleetReport
from engine.sim.memory import plan_memory
from engine.sim.router import make_router
from engine.sim.run import make_engine
from prep_common.text import counted

MOST_REPLICAS = 8
"""Replicas of the slice."""
MOST_REQUESTS = 6000


def simulate_slice(
    capacity: Capacity, router: str, seed: int = 0, tell: Callable[[int, int], None] | None = None
) -> FleetReport:
    """Serve the slice's share of the peak. tell: called with (requests sent, requests in all)."""
    assert capacity.state is not None
    scenario, replicas = capacity.scenario, size_of_slice(capacity)
    count = min(MOST_REQUESTS, replicas * sensible_count(capacity))
    memory, rates = plan_memory(scenario.deployment), calibrated_rates(scenario.deployment)

    def engine() -> SimEngine:
        return make_engine(scenario.deployment, plan=memory, rates=rates)

    work = scenario.workload(count, capacity.state.rate * replicas, seed)
    fleet = Fleet(engine, replicas, make_router(router))
    return fleet.run(work, (lambda number: tell(number, count)) if tell else None)


def size_of_slice(capacity: Capacity) -> int:
    return min(MOST_REPLICAS, round(capacity.value("replicas")))


def gaps(capacity: Capacity, report: FleetReport, router: str) -> list[Gap]:
    """Compare formula and simulation, with the reason for each difference."""
    rows = compare(capacity, report.run, len(report.replicas))
    ttft = report.run.ttft
    if len(report.replicas) == 1 or ttft is None:
        return rows
    replicas = counted(len(report.replicas), "replica")
    why = (
        f"The formula lets every replica have random arrivals. {router} over {replicas} sends the "
        f"busiest {report.balance:.2f} times the mean; TTFT p99 is {ms(ttft.p99)}."
    )
    evened = {"Time to first token (TTFT), mean", "Requests running at once", "Busy"}
    return [
        Gap(row.title, row.unit, row.formula, row.run, why)
        if row.title in evened and "agree" not in row.why
        else row
        for row in rows
    ]
