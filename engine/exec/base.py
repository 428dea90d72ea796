"""The seam between the engine and wherever its workers run.

Source: vLLM v1/executor/abstract.py.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from engine.config import SchedulerConfig
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput


@runtime_checkable
class Executor(Protocol):
    """Runs steps on workers whose model is loaded."""

    def determine_num_blocks(self, scheduler: SchedulerConfig) -> int:
        """How many KV blocks every worker can hold."""
        ...

    def init_cache(self, num_blocks: int, scheduler: SchedulerConfig) -> None:
        """Allocate the KV cache; call once, before the first step."""
        ...

    def execute(self, out: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; an empty one only frees what finished requests held."""
        ...

    def shutdown(self) -> None:
        """Give back the device's memory. The executor is of no use afterwards."""
        ...
