"""Experiments on the engine: functions in `quizzes/experiments/<topic>/*.py` (see README.md)."""

from quizzes.experiments.context import Context, deploy, generate, greedy, worker_of
from quizzes.experiments.core_engine import Ask, CoreEngine, Fresh
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

__all__ = ["Ask", "BadArguments", "Context", "CoreEngine", "Fresh", "Inconclusive", "NeedsHardware", "Result"]
__all__ += ["arg", "deploy", "experiment", "generate", "get", "greedy", "names", "paired_ratio", "worker_of"]
