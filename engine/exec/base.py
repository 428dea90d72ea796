"""The seam between the engine and wherever its workers run.

Source: vLLM v1/executor/abstract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from engine.config import SchedulerConfig
from engine.core.sched_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput


class PendingStep(Protocol):
    """A step that the workers compute."""

    def result(self) -> ModelRunnerOutput:
        """Wait for it. Ask in the order in which the steps were submitted."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Runs steps on workers whose model is loaded. Built from (ModelConfig, EngineArgs, logits processors)."""

    max_concurrent_batches: int
    """Steps that may be under way at once: one for each pipeline stage."""

    def determine_num_blocks(self, scheduler: SchedulerConfig) -> int:
        """How many KV blocks every worker can hold."""
        ...

    def init_cache(self, num_blocks: int, scheduler: SchedulerConfig) -> None:
        """Allocate the KV cache; call once, before the first step."""
        ...

    def execute(
        self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None
    ) -> ModelRunnerOutput:
        """Run one step; an empty one only frees what finished requests held.

        bitmask: the tokens that structured requests may choose from, built while the forward pass runs.
        """
        ...

    def submit(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None) -> PendingStep:
        """Let the workers begin a step, behind those that are under way. As `execute`, but without waiting."""
        ...

    def collective_rpc(self, method: str | Callable[..., Any], *args: Any) -> list[Any]:
        """Call a method of every worker, or a function with each worker as its first argument, between steps.

        One answer per worker, rank 0 first. A function must live in a module that workers can import.
        """
        ...

    def shutdown(self) -> None:
        """Give back the device's memory. The executor is of no use afterwards."""
        ...
