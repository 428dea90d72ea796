"""One run of an experiment, in this process: arguments checked, result as plain values."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from engine.config import ConfigError
from quizzes.experiments.context import Context
from quizzes.experiments.registry import BadArguments, get


class BadResult(TypeError):
    """An experiment that returned something else than a frozen dataclass of plain values: its author's mistake."""


def run_here(
    name: str, args: dict[str, Any] | None = None, *, seed: int = 0, trace: Path | None = None
) -> dict[str, Any]:
    """The result's fields by name.

    Raises:
        UnknownExperiment, BadArguments: nothing was run.
        Inconclusive, NeedsHardware: it cannot decide here.
        BadResult: it did not return what it must.
    """
    experiment = get(name)
    values = experiment.check(args or {})
    try:
        result = experiment.function(Context(seed=seed, trace=trace), **values)
    except ConfigError as error:  # values that are fine each, and together nothing that the engine can do
        raise BadArguments(f"{name}: {error}") from error
    if not dataclasses.is_dataclass(result) or isinstance(result, type):
        raise BadResult(f"{name} returned {type(result).__name__}; an experiment returns a dataclass")
    plain = dataclasses.asdict(result)
    try:
        return json.loads(json.dumps(plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadResult(f"{name}: a field of the result is not a plain value: {error}") from error
