"""`prep bench fleet`: a simulated fleet against live processes."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli import terminal
from app.cli.bench import common
from app.cli.options import JsonOption, argument, option
from prep_common.text import duration


def fleet(
    scenarios: Annotated[list[str] | None, argument("Names of scenarios; by default all eight.")] = None,
    seconds: Annotated[float, option("Seconds of load in each round.", min=1, max=12)] = 8.0,
    rounds: Annotated[int, option("Rounds of each scenario; figures are their medians.", min=1, max=9)] = 3,
    json: JsonOption = False,
) -> None:
    """Compare the simulated fleet with a live one: goodput and the slowest percent, in eight scenarios.

    Starts fleets of one to three processes behind a gateway, calibrates the simulator on them, sends the same seeded
    requests to both. Replicas are paced (a step takes 15 ms, and 1 ms per token) in five scenarios, and share the
    cores in three. Exit code 0: all figures within 15 %; 1: not.

    \b
    Examples:
      prep bench fleet
      prep bench fleet three "two, prefixes" --seconds 5
    """
    with terminal.loading("the engine"):
        from app.bench import fleet_check

    known = [scenario.name for scenario in fleet_check.SCENARIOS]
    for name in scenarios or []:
        if name not in known:
            raise terminal.Problem(f"no scenario {name!r}; there are: {'; '.join(known)}", "prep bench fleet")

    def show(report: fleet_check.FleetCheck) -> None:
        for name, seconds in report.http_s.items():
            terminal.say(f"[dim]{name}: {duration(seconds)} from client to engine and back[/]")
        for outcome in report.outcomes:
            words = f"other programs used {max(outcome.other_cores):.1f} cores at most"
            if outcome.slowdown:
                factors = ", ".join(f"{one.prompt:.2f} / {one.decode:.2f}" for one in outcome.slowdown)
                words += f"; slowdown with 1, 2, ... busy replicas (prompt / decode): {factors}"
            terminal.say(f"[dim]{outcome.scenario}: {words}[/]")
        headings = ("scenario", "requests", "", "live", "its spread", "simulated", "error", "within 15 %")
        table = terminal.table(*headings, left=("",))
        for outcome in report.outcomes:
            for index, figure in enumerate(outcome.figures):
                values = (figure.live_median, figure.simulated_median)
                live, simulated = (f"{one:.2f}/s" if not index else duration(one) for one in values)
                first = (outcome.scenario, str(outcome.num_requests)) if not index else ("", "")
                words = figure.name.replace("_", " ").upper() if index else figure.name
                mark = terminal.mark(figure.is_within)
                table.add_row(
                    *first, words, live, f"{figure.spread:.0%}", simulated, f"{figure.error:+.0%}", mark
                )
        terminal.show("Live fleet against its simulation", table)

    report = common.run(
        lambda tell: fleet_check.check(tell, scenarios or (), seconds=seconds, rounds=rounds),
        show,
        json=json,
        then=("prep sim fleet --autoscale load", "a fleet of any size"),
        takes="6 minutes",
        as_json=fleet_check.as_json,
    )
    if not all(figure.is_within for outcome in report.outcomes for figure in outcome.figures):
        raise typer.Exit(terminal.CHECKS_FAILED)
