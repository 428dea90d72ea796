"""One worker in the engine's own process.

Source: vLLM v1/executor/uniproc_executor.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from engine.config import EngineConfig
from engine.core.sched_output import GrammarBitmask, SchedulerOutput
from engine.exec.base import PendingStep
from engine.worker.worker import Worker, call_worker


class UniProcExecutor:
    """One worker, called directly."""

    def __init__(self, config: EngineConfig) -> None:
        self._worker: Worker | None = Worker(config)

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("the executor was shut down")
        return self._worker

    def submit(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None) -> PendingStep:
        result = self.worker.execute(out, bitmask)
        return lambda: result

    def collective_rpc(self, method: str | Callable[..., Any], *args: Any) -> list[Any]:
        return [call_worker(self.worker, method, *args)]

    def shutdown(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()
            is_cuda = worker.device.type == "cuda"
            del worker  # with its tensors
            if is_cuda:
                torch.cuda.empty_cache()


def worker_of(core: object) -> Worker:
    """Return the worker of an engine core without parallelism. Raises TypeError for other cores."""
    executor = getattr(core, "executor", None)
    if not isinstance(executor, UniProcExecutor):
        raise TypeError("only an engine without parallelism has its worker in this process")
    return executor.worker
