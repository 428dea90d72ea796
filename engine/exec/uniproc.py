"""One worker in the engine's own process.

Source: vLLM v1/executor/uniproc_executor.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core.sched_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.worker.worker import Worker, call_worker


@dataclass(slots=True)
class FinishedStep:
    """A `PendingStep` that has run already."""

    output: ModelRunnerOutput

    def result(self) -> ModelRunnerOutput:
        return self.output


class UniProcExecutor:
    """One worker, called directly."""

    def __init__(self, config: EngineConfig) -> None:
        self.worker: Worker | None = Worker(config)
        self.worker.load()

    def determine_num_blocks(self) -> int:
        return self._live_worker().determine_num_blocks()

    def init_cache(self, num_blocks: int) -> None:
        self._live_worker().init_cache(num_blocks)

    def execute(
        self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None
    ) -> ModelRunnerOutput:
        return self._live_worker().execute(out, bitmask)

    def submit(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None) -> FinishedStep:
        return FinishedStep(self.execute(out, bitmask))

    def collective_rpc(self, method: str | Callable[..., Any], *args: Any) -> list[Any]:
        return [call_worker(self._live_worker(), method, *args)]

    def shutdown(self) -> None:
        if self.worker is not None:
            self.worker.shutdown()
        if self.worker is not None and self.worker.device.type == "cuda":
            self.worker = None
            torch.cuda.empty_cache()
        self.worker = None

    def _live_worker(self) -> Worker:
        if self.worker is None:
            raise RuntimeError("the executor was shut down")
        return self.worker


def worker_of(core: object) -> Worker:
    """Return the worker of an engine core without parallelism. Raises TypeError for other cores."""
    executor = getattr(core, "executor", None)
    if not isinstance(executor, UniProcExecutor):
        raise TypeError("only an engine without parallelism has its worker in this process")
    return executor._live_worker()
