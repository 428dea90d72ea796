"""Run experiments in the test's process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from quizzes.experiments import Context, get
from quizzes.experiments.running import run_here

_results: dict[str, dict[str, Any]] = {}


def runner(topic: str) -> Callable[..., Any]:
    """Return run(name, **args), which gives the result of an experiment of the topic as it is."""

    def run(name: str, **args: Any) -> Any:
        found = get(f"{topic}.{name}")
        return found.run(Context(), **found.check(args))

    return run


def run_once(name: str, args: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a result; each run is done once."""
    key = json.dumps([name, args], sort_keys=True, default=str)
    if key not in _results:
        _results[key] = run_here(name, args)
    return _results[key]
