"""`prep sim autoscale`: scaling policies on days of traffic, at equal cost."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, argument, make_folder_of, option
from engine.sim.autoscale_race import AS_GOOD, HIGHER, LOWER, Race, Result, Service, race
from engine.sim.fluid import DayReport
from prep_common.paths import write_atomically


def autoscale(
    plan: Annotated[str, argument("A plan of prep capacity: a file, or an example.", metavar="PLAN")] = (
        "assistant_day"
    ),
    seeds: Annotated[int, option("Test days, each with traffic of its own.", min=1, max=1000)] = 10,
    seed: Annotated[int, option("First seed.", min=0, max=100_000)] = 0,
    days: Annotated[int, option("Days of traffic per seed.", min=1, max=30)] = 1,
    budget: Annotated[
        float, option("Replica hours over those of an oracle at the planned load.", min=0.5, max=10)
    ] = 1.0,
    svg: Annotated[
        Path | None, option("Write the chart of the first day to this file.", metavar="FILE")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare autoscalers over a day: SLO violations, replica hours, changes and thrash.

    Traffic: the plan's daily profile, a level that differs by day, and unannounced spikes. Each policy is tuned on
    other days to spend at most the same budget; then it runs on the test days. Requests are a fluid here
    (engine/sim/fluid.py). Takes about a minute.

    \b
    Examples:
      prep sim autoscale
      prep sim autoscale assistant_day --seeds 20 --budget 1.15 --svg day.svg
    """
    from app.cli.capacity import read_plan

    make_folder_of(svg)
    service = service_of(read_plan(plan), days, seed)
    began = time.perf_counter()
    with terminal.status("tuning") as tell:
        outcome = race(service, seeds, budget, tell=lambda name: tell(f"tuning {name}"))
    took = time.perf_counter() - began
    if svg is not None:
        write_atomically(svg, draw_day(outcome, service))
    if json:
        return terminal.print_json(_as_json(outcome, took))
    show(outcome, took, seeds)
    terminal.next_command("prep sim autoscale --svg day.svg", "the replicas over the first day")


def service_of(plan: Any, days: int, seed: int) -> Service:
    """Return the plan's service. Raises Problem if the model does not fit."""
    from app.debugger.capacity.figures import planned_rate
    from app.debugger.capacity.plan_figures import scenario_of, work_out_plan
    from engine.sim.day import DayTraffic
    from engine.sim.fluid import Costs
    from engine.sim.steady_state import Replica

    scenario, (capacity, _) = scenario_of(plan), work_out_plan(plan)
    if capacity.problem:
        raise terminal.Problem(capacity.problem, "prep capacity --help")
    replica = Replica(scenario, capacity.value("batch_limit"))
    traffic = DayTraffic(plan.traffic.hours, days, seed)
    planned = planned_rate(scenario, replica)
    return Service(
        Costs(replica), planned, plan.slo.ttft, plan.slo.tpot, capacity.value("cold_start"), traffic
    )


def show(outcome: Race, took: float, seeds: int) -> None:
    """Print a row per policy, and ours against the HPA on the queue, seed by seed."""
    table = terminal.table("policy", "SLO missed", "worst seed", "hours", "changes", "thrash", "most")
    for result in outcome.results:
        worst = max(report.violated for report in result.reports)
        table.add_row(
            result.name,
            f"{result.mean(_violated):.2%}",
            f"{worst:.2%}",
            f"{result.mean(_hours):,.0f}",
            f"{result.mean(lambda r: r.changes):,.0f}",
            f"{result.mean(lambda r: r.thrash):,.1f}",
            f"{result.mean(lambda r: r.most_replicas):,.0f}",
        )
    budget = f"budget {outcome.budget:,.0f} replica hours on the tuning days"
    hours = f"{budget}, oracle {outcome.oracle:,.0f} on the test days"
    terminal.show(f"means of {seeds} seeds: {hours}", table)
    for result in outcome.results:
        beyond = "" if result.meets_budget else "; no setting is within the budget: this is the cheapest"
        terminal.say(f"{result.name + ':':<15} {result.words}{beyond}")
    show_rivals(outcome)
    requests = outcome.results[0].mean(lambda report: report.num_requests)
    terminal.say(f"{requests:,.0f} requests per seed; all runs and the tuning took {took:.1f} s")


def show_rivals(outcome: Race) -> None:
    """Print the HPAs' settings next to ours: misses and cost over the seeds, and what follows."""
    ours, seeds = outcome.results[0], len(outcome.seeds)
    table = terminal.table(
        "policy", "setting", "cost", "hours", "SLO missed", "misses more in", left=("setting",)
    )
    table.add_row(ours.name, "", "1.00 x", f"{ours.mean(_hours):,.0f}", f"{ours.mean(_violated):.2%}", "")
    for role, rival in outcome.rivals:
        row = (f"{ratio(rival, ours):.2f} x", f"{rival.mean(_hours):,.0f}", f"{rival.mean(_violated):.2%}")
        table.add_row(rival.name, role, *row, f"{misses_more(rival, ours)} of {seeds}")
    terminal.show(f"settings of the HPAs next to {ours.name}; seeds in which they miss more", table)
    for name in dict.fromkeys(rival.name for _, rival in outcome.rivals):
        terminal.say(verdict(ours, {role: rival for role, rival in outcome.rivals if rival.name == name}))


def verdict(ours: Result, rivals: dict[str, Result]) -> str:
    """Return whether ours is better than an HPA, from the settings of that HPA next to ours."""
    name = next(iter(rivals.values())).name
    seeds = len(ours.reports)
    lower, higher, as_good = (rivals.get(role) for role in (LOWER, HIGHER, AS_GOOD))
    if lower is not None and lower.mean(_violated) <= ours.mean(_violated):
        return f"{name} is better: at {ratio(lower, ours):.2f} times the cost it misses no more"
    words = ["no setting costs as little" if lower is None else "with less cost it misses more"]
    if higher is not None:
        more = misses_more(higher, ours)
        words.append(f"at {ratio(higher, ours):.2f} times the cost it misses more in {more} of {seeds} seeds")
        if more < seeds:
            return f"{name} and {ours.name} trade cost for misses: {', '.join(words)}"
        price = "no setting misses as little"
        if as_good is not None:
            price = f"as few misses on the tuning days cost {ratio(as_good, ours):.2f} times as much"
        words.append(price)
    return f"{ours.name} is better than {name}: {', '.join(words)}"


def ratio(result: Result, ours: Result) -> float:
    """Return the cost relative to ours."""
    return result.mean(_hours) / ours.mean(_hours)


def misses_more(result: Result, ours: Result) -> int:
    """Count the seeds in which it violates the SLO more often than ours."""
    return sum(a.violated > b.violated for a, b in zip(result.reports, ours.reports, strict=True))


def _violated(report: DayReport) -> float:
    return report.violated


def _hours(report: DayReport) -> float:
    return report.replica_hours


def draw_day(outcome: Race, service: Service) -> str:
    """Draw the replicas of the first seed over the day, with each policy's figures in its name."""
    from prep_common.line_chart import Line, draw

    shown = [
        result
        for result in outcome.results
        if result.name in ("asymmetric", "HPA queue", "HPA load", "predictive")
    ]
    lines = []
    for result in shown:
        first = result.reports[0]
        name = f"{result.name}: {result.mean(_violated):.2%}, {result.mean(_hours):,.0f} h"
        points = [(t / 3600, float(n)) for t, n in zip(first.times, first.replicas, strict=True)]
        lines.append(Line(name, points[::4], is_step=True))
    first = shown[0].reports[0]
    needed = [(t / 3600, r / service.planned) for t, r in zip(first.times, first.rates, strict=True)]
    lines.append(Line("needed at the planned load", needed[::4]))
    return draw(
        lines, "hour", "replicas", title="Replicas of the first seed; SLO missed and hours of all seeds"
    )


def _as_json(outcome: Race, took: float) -> dict[str, Any]:
    levels = ("times", "replicas", "rates")

    def policy(result: Result) -> dict[str, Any]:
        seeds = [
            {name: value for name, value in asdict(report).items() if name not in levels}
            | {"violated": report.violated}
            for report in result.reports
        ]
        first = {name: getattr(result.reports[0], name) for name in levels}
        named = terminal.pick(result, "name words meets_budget") | terminal.pick(
            result.setting, "choice knob"
        )
        return named | {"seeds": seeds, "first_day": first}

    return {
        "budget": outcome.budget,
        "oracle": outcome.oracle,
        "seconds": took,
        "policies": list(map(policy, outcome.results)),
        "rivals": [policy(rival) | {"role": role} for role, rival in outcome.rivals],
    }
