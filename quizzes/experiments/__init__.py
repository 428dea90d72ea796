"""Experiments on the engine, one file each: `quizzes/experiments/<topic>/<name>.py` (see README.md)."""

from quizzes.experiments.context import Context
from quizzes.experiments.core_engine import Ask, CoreEngine
from quizzes.experiments.registry import Inconclusive, NeedsHardware, experiment, get, names

__all__ = ["Ask", "Context", "CoreEngine", "Inconclusive", "NeedsHardware", "experiment", "get", "names"]
