"""Two engines over the same tiny model that hand KV to each other, stepped in turn in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.engine_core import EngineCore
from tests.engine.harness import request
from tests.waiting import wait_until

PATIENCE_S = 60.0
"""After this a test has hung. No test measures time."""

MakeEngine = Callable[..., EngineCore]


def shared_memory(folder: Path, **extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": "SharedMemoryConnector",
        "kv_connector_extra_config": {"path": str(folder / "kv"), **extra},
    }


def tcp(folder: Path, **extra: Any) -> dict[str, Any]:
    return {"kv_connector": "TCPConnector", "kv_connector_extra_config": extra}


TRANSPORTS = {"shared_memory": shared_memory, "tcp": tcp}


def ask(name: str, prompt: list[int], params: dict[str, Any] | None = None, **options: Any) -> Request:
    """A request; `params` are its kv_transfer_params."""
    extra_args = None if params is None else {"kv_transfer_params": params}
    return request(name, prompt, extra_args=extra_args, **options)


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    last: EngineCoreOutput | None = None


def run(engine: EngineCore, *requests: Request, until: Callable[[], bool] | None = None) -> dict[str, Answer]:
    """Step until the requests have ended, or until something is so."""
    answers = {item.request_id: Answer() for item in requests}
    for item in requests:
        engine.add_request(item)
    is_over = until or (lambda: all(answer.last is not None for answer in answers.values()))

    def stepped() -> bool:
        if is_over():
            return True
        for output in engine.step():
            if output.request_id in answers:
                answer = answers[output.request_id]
                answer.token_ids += output.new_token_ids
                answer.last = output if output.finish_reason else None
        return False

    wait_until(stepped)
    return answers


def settle(*engines: EngineCore) -> None:
    """Step until every transfer has ended, then look for leaks."""

    def stepped() -> bool:
        if not any(engine.has_unfinished() for engine in engines):
            return True
        for engine in engines:
            engine.step()
        return False

    wait_until(stepped)
    for engine in engines:
        engine.scheduler.check_integrity()
        assert engine.scheduler.kv.pool.num_used == 0


def prefill(engine: EngineCore, prompt: list[int], name: str = "p", **options: Any) -> dict[str, Any]:
    """Do the first step of a router: generate one token and return the params with the address of the KV."""
    options = {"max_tokens": 1, **options}
    last = run(engine, ask(name, prompt, {"do_remote_decode": True}, **options))[name].last
    assert last is not None and last.kv_transfer_params is not None
    engine.step()  # tells the worker half which blocks to keep or to share
    return last.kv_transfer_params


class Totals:
    """Sums an engine's counters over all steps: `StepStats` has one step's."""

    def __init__(self, engine: EngineCore) -> None:
        self.sums: dict[str, int] = {}
        self._update = engine.scheduler.update
        engine.scheduler.update = self._counted
        self._scheduler = engine.scheduler

    def _counted(self, *arguments: Any) -> list[EngineCoreOutput]:
        outputs = self._update(*arguments)
        for name in self._scheduler.stats.__slots__:
            value = getattr(self._scheduler.stats, name)
            if isinstance(value, int):
                self.sums[name] = self.sums.get(name, 0) + value
        return outputs

    def __getattr__(self, name: str) -> int:
        return self.sums.get(name, 0)
