"""The commands that start the servers of a stage."""

from __future__ import annotations

import json

from interview.drills.drill import Settings, Stage

HOOKS_VARIABLE = "PREP_DRILL_HOOKS"
"""Environment variable of a server: a JSON list of hooks, each with a name and arguments (faults.py)."""


def options(settings: Settings) -> list[str]:
    """Return options of `prep serve` as arguments."""
    found: list[str] = []
    for name, value in settings.items():
        if value is True or value is False:
            found.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            for each in value if isinstance(value, list) else [value]:
                found += [f"--{name}", str(each)]
    return found


def commands(stage: Stage) -> list[str]:
    """Return the commands that start the servers of a stage, and its gateway."""
    found = [f"prep {' '.join(arguments(stage, number))}" for number in range(stage.replicas)]
    if stage.gateway is not None:
        found.append("prep gateway run  " + json.dumps(stage.gateway))
    return found


def arguments(stage: Stage, number: int) -> list[str]:
    """Return the arguments of a server of the stage."""
    own = stage.last.set if stage.last is not None and number == stage.replicas - 1 else {}
    return ["serve", stage.model, *options(stage.set | own)]
