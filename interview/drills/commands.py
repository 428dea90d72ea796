"""The commands that start the servers of a stage."""

from __future__ import annotations

import json

from interview.drills.drill import Change, Drill, Settings, Stage

HOOKS_VARIABLE = "PREP_DRILL_HOOKS"
"""Environment variable of a server: a JSON list of hooks, each with a name and arguments (faults.py)."""


def options(settings: Settings) -> list[str]:
    """Return options of `prep serve` as arguments."""
    flags: list[str] = []
    for name, value in settings.items():
        if value is True or value is False:
            flags.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            for item in value if isinstance(value, list) else [value]:
                flags += [f"--{name}", str(item)]
    return flags


def commands(stage: Stage) -> list[str]:
    """Return the commands that start the servers of a stage, and its gateway."""
    lines = [f"prep {' '.join(arguments(stage, number))}" for number in range(stage.replicas)]
    if stage.gateway is not None:
        lines.append("prep gateway run  " + json.dumps(stage.gateway))
    return lines


def arguments(stage: Stage, number: int) -> list[str]:
    """Return the arguments of a server of the stage."""
    own = stage.last.set if stage.last is not None and number == stage.replicas - 1 else {}
    return ["serve", stage.model, *options(stage.set | own)]


def is_right_fix(drill: Drill, change: Change) -> bool:
    """Return whether a change does what a right fix of the drill does, also if it was typed as options."""
    right = [_effect(drill, drill.fixes[number - 1]) for number in drill.right_fixes]
    return _effect(drill, change) in right


def _effect(drill: Drill, change: Change) -> object:
    """Return stage and load after a change of the faulty stage, with options as the servers read them: "5" is 5."""
    stage, load = drill.changed(drill.fault, change)
    read = {name: flags for name, value in stage.set.items() if (flags := options({name: value}))}
    return stage.model_copy(update={"set": read}), load
