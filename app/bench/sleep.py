"""Time sleep, waking up and a switch between two models on one device: sleep A, wake B, first token of B."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import psutil

from app.bench.timing import Tell, partial_results
from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.exec.core_process import CoreProcess
from engine.sampling_params import SamplingParams


@dataclass
class ModelSleep:
    """Seconds, medians over the rounds; bytes of the engine's process, which ends while it sleeps."""

    model: str
    start: float
    sleep: float = 0.0
    wake: float = 0.0
    first_token: float = 0.0  # of the first request after waking up
    freed_bytes: int = 0


@dataclass
class SleepReport:
    models: list[ModelSleep] = field(default_factory=list)
    rounds: int = 0
    switch: float = 0.0  # from the order to sleep until the other model's first token
    interrupted: bool = False


def measure(tell: Tell, models: list[str], settings: dict[str, Any], *, rounds: int = 5) -> SleepReport:
    """Run the benchmark; Ctrl-C ends it early with the rounds that are done."""
    report = SleepReport()
    with partial_results(report):
        asyncio.run(_measure(tell, report, models, settings, rounds))
    return report


async def _measure(
    tell: Tell, report: SleepReport, models: list[str], settings: dict[str, Any], rounds: int
) -> None:
    engines: list[AsyncLLM] = []
    try:
        for model in models:
            tell(f"start {model}")
            began = perf_counter()
            engines.append(AsyncLLM(EngineArgs.create(model=model, **settings), own_process=True))
            await _first_token(engines[-1])
            report.models.append(ModelSleep(model, perf_counter() - began))
            if len(models) > 1 and model != models[-1]:
                await engines[-1].sleep()
        await _rounds(tell, report, engines, rounds)
    finally:
        for engine in engines:
            engine.shutdown()


async def _rounds(tell: Tell, report: SleepReport, engines: list[AsyncLLM], rounds: int) -> None:
    times: list[list[tuple[float, float, float]]] = [[] for _ in engines]
    switches: list[float] = []
    awake = len(engines) - 1
    for number in range(rounds * len(engines)):
        tell(f"switch {number + 1} of {rounds * len(engines)}")
        other = (awake + 1) % len(engines)
        report.models[awake].freed_bytes = _memory(engines[awake])
        slept = await _timed(engines[awake].sleep)
        woken = await _timed(engines[other].wake_up)
        first = await _timed(lambda engine=engines[other]: _first_token(engine))  # type: ignore[misc]
        switches.append(slept + woken + first)
        times[other].append((slept, woken, first))
        awake = other
        report.rounds = number // len(engines) + 1
        report.switch = median(switches)
        for entry, seconds in zip(report.models, times, strict=True):
            if seconds:
                entry.sleep, entry.wake, entry.first_token = (
                    median(column) for column in zip(*seconds, strict=True)
                )


async def _timed(action: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    began = perf_counter()
    await action()
    return perf_counter() - began


async def _first_token(engine: AsyncLLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    async for _ in engine.generate("Hello", params):
        pass


def _memory(engine: AsyncLLM) -> int:
    """Return the resident bytes of the engine's process."""
    core = engine.llm_engine.engine_core
    return psutil.Process(core.pid).memory_info().rss if isinstance(core, CoreProcess) else 0
