"""The seam between the engine and its workers, in this process or in others.

Source: vLLM v1/executor/abstract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from engine.config import EngineConfig
from engine.config.settings import load_class
from engine.core.sched_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput

EXECUTORS = {
    "uni": "engine.exec.uniproc:UniProcExecutor",
    "mp": "engine.exec.multiproc:MultiprocExecutor",
    "ray": "engine.exec.ray:RayExecutor",
}
"""`distributed_executor_backend` -> the executor's class; imported when it is used."""

PendingStep = Callable[[], ModelRunnerOutput]
"""Waits for a step that the workers compute. Call them in the order in which the steps were submitted."""


@runtime_checkable
class Executor(Protocol):
    """Runs steps on workers. Its constructor loads the model.

    The engine calls `determine_num_blocks`, `init_cache` and other methods of `Worker` through `collective_rpc`.
    """

    def __init__(self, config: EngineConfig) -> None: ...

    def submit(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None) -> PendingStep:
        """Queue a step behind those under way and return without waiting for it.

        An empty step only frees what finished requests held. bitmask: the tokens that structured outputs allow,
        built during the forward pass.
        """

    def collective_rpc(self, method: str | Callable[..., Any], *args: Any) -> list[Any]:
        """Call a method of every worker, or a function with each worker as its first argument, between steps.

        Return one answer per worker, rank 0 first. A function must live in a module that workers can import.
        """

    def shutdown(self) -> None:
        """Free the device's memory. The executor cannot be used afterwards."""


def executor_class(backend: str | type[Executor]) -> type[Executor]:
    """Return the class of a key of EXECUTORS, of a path `package.module:Class`, or given as itself."""
    path = EXECUTORS.get(backend, backend) if isinstance(backend, str) else backend
    methods = ("submit", "collective_rpc", "shutdown")
    loaded: type[Executor] = load_class(
        path, "distributed_executor_backend", methods, "Executor in engine/exec/base.py"
    )
    return loaded
