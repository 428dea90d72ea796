"""Run a drill of an interview on this machine, for the front ends. It needs the libraries of servers."""

from __future__ import annotations

from typing import Any

from engine.config import ConfigError
from interview.drills import looks
from interview.drills.drill import Drill, find_drill
from interview.drills.figures import LOOKS, Figures
from interview.drills.measure import figures, good_share
from interview.drills.running import Record, Tell, run
from interview.drills.session import Runs
from interview.mock.turns import RunDrill


def live(want: RunDrill, tell: Tell, runs: Runs = run) -> dict[str, Any]:
    """Run what a turn wants: both runs of a drill, or one with a fix. Return the reply to the turn.

    A healthy run that misses its objective is repeated, then it fails: on a busy machine the incident would have two
    causes. tell: gets the progress. runs: runs a stage under its load.
    """
    drill, number = find_drill(want.name), int(want.args["fix"])
    try:
        if number:
            _, share, _ = _measured(
                drill, [drill.fault, drill.fixes[number - 1]], runs, _named(tell, "with the fix")
            )
            return {"result": {"good": {str(number): share}}}
        yesterday = _named(tell, "yesterday, 1 of 2")
        healthy, before, _ = _measured(drill, [], runs, yesterday)
        if not drill.is_met(before):
            yesterday("the healthy server missed its own objective; once more")
            healthy, before, _ = _measured(drill, [], runs, yesterday)
        if not drill.is_met(before):
            return {
                "failed": f"this machine is too busy: the healthy server, too, has {before:.0%} good requests"
            }
        faulty, now, record = _measured(drill, [drill.fault], runs, _named(tell, "today, 2 of 2"))
    except ConfigError as error:
        return {"failed": str(error)}
    details = {name: looks.details(name, record) for name in LOOKS}
    good = {"healthy": before, "faulty": now}
    return {"result": {"healthy": healthy, "faulty": faulty, "good": good, "details": details}}


def _named(tell: Tell, name: str) -> Tell:
    return lambda text: tell(f"{name}: {text}")


def _measured(drill: Drill, changes: list[Any], runs: Runs, tell: Tell) -> tuple[Figures, float, Record]:
    stage, load = drill.changed(*changes)
    record = runs(stage, load, tell)
    return figures(record, load), round(good_share(record, load, drill.objective), 3), record
