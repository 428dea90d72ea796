"""One worker in the engine's own process.

Source: vLLM v1/executor/uniproc_executor.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from engine.config import EngineArgs, ModelConfig, SchedulerConfig
from engine.core.sched_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.sample.processors import LogitsProcessor
from engine.worker.worker import Worker, call_worker


@dataclass(slots=True)
class FinishedStep:
    """A `PendingStep` whose result is there already."""

    output: ModelRunnerOutput

    def result(self) -> ModelRunnerOutput:
        return self.output


class UniProcExecutor:
    """Calls its worker directly."""

    max_concurrent_batches = 1

    def __init__(
        self,
        model_config: ModelConfig,
        args: EngineArgs,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self.worker: Worker | None = Worker(model_config, args, logits_processors)
        self.worker.load()

    def determine_num_blocks(self, scheduler: SchedulerConfig) -> int:
        return self._live_worker().determine_num_blocks(scheduler)

    def init_cache(self, num_blocks: int, scheduler: SchedulerConfig) -> None:
        self._live_worker().init_cache(num_blocks, scheduler)

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
