"""Experiments on the engine, one file each: `quizzes/experiments/<topic>/<name>.py` (see README.md)."""

from quizzes.experiments.context import Context, greedy, worker_of
from quizzes.experiments.core_engine import Ask, CoreEngine
from quizzes.experiments.measure import paired_ratio
from quizzes.experiments.registry import (
    BadArguments,
    Inconclusive,
    NeedsHardware,
    Result,
    arg,
    experiment,
    get,
    names,
)

__all__ = [
    "Ask",
    "BadArguments",
    "Context",
    "CoreEngine",
    "Inconclusive",
    "NeedsHardware",
    "Result",
    "arg",
    "experiment",
    "get",
    "greedy",
    "names",
    "paired_ratio",
    "worker_of",
]
