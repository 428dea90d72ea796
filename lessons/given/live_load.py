"""Open-loop load on a real server of this machine: `prep serve shop` on a free port, its engine in its own process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.server.listen import listen
from engine.server.load_client import Due, Load, LoadReport, Objective, due
from engine.server.run import ServerArgs, running
from engine.sim.workload import Lengths, Workload

VOCABULARY = 2000
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True)
class Measured:
    """One load on the server."""

    report: LoadReport
    """Measurements of the clients; times in seconds."""
    looks: list[float] = field(default_factory=list)
    """Requests in the engine, running and waiting, whenever /metrics was read: ten times a second."""

    @property
    def in_engine(self) -> float:
        return sum(self.looks) / max(1, len(self.looks))


def traffic(
    rate: float, count: int, prompt: int, output: int, arrivals: Any = "poisson", seed: int = 0
) -> list[Due]:
    """Return `count` requests at `rate` per second, all of the same lengths."""
    lengths = Lengths(prompt, prompt), Lengths(output, output)
    return list(due(Workload(count, rate, *lengths, arrivals=arrivals, seed=seed), VOCABULARY))


WARM_UP = traffic(50.0, 50, 96, 16)


def measure(loads: Sequence[Sequence[Due]], **engine: Any) -> list[Measured]:
    """Start the server, send one load after the other, and return what each gave. engine: EngineArgs."""
    with ThreadPoolExecutor(1) as pool:  # a notebook has an event loop of its own
        return pool.submit(asyncio.run, _measure(loads, engine)).result()


async def _measure(loads: Sequence[Sequence[Due]], engine: dict[str, Any]) -> list[Measured]:
    args = EngineArgs.create(model="shop", enable_prefix_caching=False, **engine)
    with listen("127.0.0.1", 0) as listener, AsyncLLM(args, own_process=True) as llm:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with running("shop", llm, listener, ServerArgs(stats_interval_s=0)):
            await _send(url, WARM_UP)  # the first steps of a server are slower than all later ones
            return [await _send(url, load) for load in loads]


async def _send(url: str, load: Sequence[Due]) -> Measured:
    looks: list[float] = []
    watching = asyncio.create_task(_watch(url, looks))
    report = await Load(url, "", None, Objective(), timeout_s=120).run(load)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return Measured(report, looks)


async def _watch(url: str, looks: list[float]) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        while True:
            families = text_string_to_metric_families((await client.get("/metrics")).text)
            looks.append(sum(s.value for family in families for s in family.samples if s.name in GAUGES))
            await asyncio.sleep(0.1)
