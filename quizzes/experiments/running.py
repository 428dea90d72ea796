"""One run of an experiment, in this process: arguments checked, result as plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.config import ConfigError
from quizzes.experiments.context import Context
from quizzes.experiments.registry import BadArguments, Result, get


class BadResult(TypeError):
    """An experiment returned something other than a Result of plain values with the fields it declares."""


def run_here(
    name: str, args: dict[str, Any] | None = None, *, seed: int = 0, trace: Path | None = None
) -> dict[str, Any]:
    """Return the result's fields by name.

    Raises:
        UnknownExperiment, BadArguments: nothing was run.
        Inconclusive, NeedsHardware: it cannot decide here.
        BadResult: the experiment is at fault, see above.
    """
    experiment = get(name)
    values = experiment.check(args or {})
    try:
        result = experiment.function(Context(seed=seed, trace=trace), **values)
    except ConfigError as error:  # each value is valid, but the engine rejects the combination
        raise BadArguments(f"{name}: {error}") from error
    if not isinstance(result, Result):
        raise BadResult(f"{name} returned {type(result).__name__}; an experiment returns a Result")
    plain, declared = vars(result), experiment.result_units
    if set(plain) != set(declared):
        raise BadResult(f"{name} returned {', '.join(plain)}; its docstring declares {', '.join(declared)}")
    try:
        return dict(json.loads(json.dumps({field: plain[field] for field in declared}, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise BadResult(f"{name}: a field of the result is not a plain value: {error}") from error
