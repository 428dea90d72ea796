"""The real scheduler behind a debug port, without a model."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.debug.port import DebugPort
from engine.sampling_params import SamplingParams
from engine.trace.writer import TraceWriter
from tests.trace.trace_workloads import header, make_scheduler, sample


class SmallEngine:
    """EngineCore around a step, with random tokens in place of a model."""

    def __init__(self, **settings: Any) -> None:
        self.scheduler = make_scheduler(**settings)
        self.debug = DebugPort(0, {"model": "random"})
        self.tracer = TraceWriter(None, header(), self.scheduler, tap=self.debug)
        self.debug.engine = self
        self.rng = random.Random(0)
        self.outputs: list[EngineCoreOutput] = []

    def add_request(self, request: Request) -> None:
        self.scheduler.add(request)
        self.tracer.add(request)

    def add(self, name: str, num_prompt: int = 9, max_tokens: int = 30) -> None:
        self.add_request(
            Request(name, list(range(num_prompt)), SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        )

    def abort(self, request_ids: list[str]) -> list[EngineCoreOutput]:
        outputs = self.scheduler.abort(request_ids)
        self.tracer.abort(output.request_id for output in outputs)
        return outputs

    def step(self) -> bool:
        """Whether a step was run."""
        if (held := self.debug.before_step()) is not None:
            self.outputs += held
            return False
        out = self.scheduler.schedule()
        result = sample(self.scheduler, out, self.rng)
        outputs = self.scheduler.update(out, result)
        self.outputs += outputs
        self.tracer.step(out, result, outputs, 0.001)
        self.debug.after_step()
        return True

    def close(self) -> None:
        self.tracer.close()
        self.debug.close()


def while_stepping(engine: SmallEngine, action: Callable[[], Any]) -> Any:
    """Run an action of another thread while this one steps the engine. What it raises is raised here."""
    result: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        engine.step()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]
