"""`prep bench fleet`: a simulated fleet against live processes."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli import terminal
from app.cli.bench import common
from app.cli.options import JsonOption, argument, option
from common.text import duration


def fleet(
    scenarios: Annotated[list[str] | None, argument("Names of scenarios; by default all eight.")] = None,
    seconds: Annotated[float, option("Seconds of load in each.", min=1, max=12)] = 8.0,
    json: JsonOption = False,
) -> None:
    """Compare the simulated fleet with a live one: goodput and the slowest percent, in eight scenarios.

    Starts prep fleet up with one to three replicas, calibrates the simulator on them, sends the same seeded requests
    to both. Exit code 0: all figures within 15 %; 1: not.

    \b
    Examples:
      prep bench fleet
      prep bench fleet two "two, prefixes" --seconds 5
    """
    with terminal.loading("the engine"):
        from app.bench import fleet_check

    known = [each.name for each in fleet_check.SCENARIOS]
    for name in scenarios or []:
        if name not in known:
            raise terminal.Problem(f"no scenario {name!r}; there are: {'; '.join(known)}", "prep bench fleet")

    def show(report: fleet_check.FleetCheck) -> None:
        terminal.say(f"HTTP path: {duration(report.http_s)}")
        for each in report.outcomes:
            factors = ", ".join(f"{one.prompt:.2f} / {one.decode:.2f}" for one in each.slowdown)
            terminal.say(
                f"[dim]{each.scenario}: slowdown with 1, 2, ... busy replicas (prompt / decode): {factors}[/]"
            )
        headings = ("scenario", "requests", "", "live", "simulated", "error", "within 15 %")
        table = terminal.table(*headings, left=("",))
        for each in report.outcomes:
            for index, (name, error) in enumerate(each.errors().items()):
                values = [getattr(side, name) for side in (each.live, each.simulated)]
                shown = [f"{value:.2f}/s" if name == "goodput" else duration(value) for value in values]
                first = (each.scenario, str(each.num_requests)) if not index else ("", "")
                words = name.replace("_", " ").upper() if index else name
                table.add_row(
                    *first, words, *shown, f"{error:+.0%}", terminal.mark(abs(error) <= fleet_check.BAR)
                )
        terminal.show("Live fleet against its simulation", table)

    report = common.run(
        lambda tell: fleet_check.check(tell, scenarios or (), seconds=seconds),
        show,
        json=json,
        then=("prep sim fleet --autoscale load", "a fleet of any size"),
        takes="2 minutes",
        as_json=fleet_check.as_json,
    )
    if not all(each.is_within for each in report.outcomes):
        raise typer.Exit(terminal.CHECKS_FAILED)
