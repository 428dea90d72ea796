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

BUSY = "this machine is too busy"


def live(want: RunDrill, tell: Tell, runs: Runs = run) -> dict[str, Any]:
    """Run what a turn wants: both runs of a drill, or one with a fix. Return the reply to the turn.

    A healthy run, or one with a right fix, that misses the objective is repeated, then it fails: on a busy machine the
    incident would have two causes. tell: gets the progress. runs: runs a stage under its load.
    """
    drill, number = find_drill(want.name), int(want.args["fix"])
    try:
        if number:
            fix = drill.fixes[number - 1]
            _, share = _twice(drill, [drill.fault, fix], runs, _named(tell, "with the fix"), again=fix.helps)
            if fix.helps and not drill.is_met(share):
                return {"failed": f"{BUSY}: a repair that helps leaves {share:.0%} good requests"}
            return {"result": {"good": {str(number): share}}}
        healthy, before = _twice(drill, [], runs, _named(tell, "yesterday, 1 of 2"), again=True)
        if not drill.is_met(before):
            return {"failed": f"{BUSY}: the healthy server, too, has {before:.0%} good requests"}
        faulty, now, record = _measured(drill, [drill.fault], runs, _named(tell, "today, 2 of 2"))
    except ConfigError as error:
        return {"failed": str(error)}
    details = {name: looks.details(name, record) for name in LOOKS}
    good = {"healthy": before, "faulty": now}
    return {"result": {"healthy": healthy, "faulty": faulty, "good": good, "details": details}}


def _named(tell: Tell, name: str) -> Tell:
    return lambda text: tell(f"{name}: {text}")


def _twice(drill: Drill, changes: list[Any], runs: Runs, tell: Tell, *, again: bool) -> tuple[Figures, float]:
    """Return the figures and the share of good requests. again: run once more if the objective is missed."""
    measured, share, _ = _measured(drill, changes, runs, tell)
    if again and not drill.is_met(share):
        tell("the objective was missed; once more")
        measured, share, _ = _measured(drill, changes, runs, tell)
    return measured, share


def _measured(drill: Drill, changes: list[Any], runs: Runs, tell: Tell) -> tuple[Figures, float, Record]:
    stage, load = drill.changed(*changes)
    record = runs(stage, load, tell)
    return figures(record, load), round(good_share(record, load, drill.objective), 3), record
