"""A running fleet of processes for `prep bench fleet`: start it, scale it, send it requests, watch the processors.

paced      app/bench/paced_fleet.py: a step takes a given time, as on a device that each replica has for itself
unpaced    prep fleet up: a step takes what a shape with random weights takes on the cores that all share
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import yaml

from app.bench.models import DUMMIES, bench_model
from app.bench.paced_fleet import MODULE, Pace
from app.bench.timing import machine_busy_seconds
from engine.fleet.folder import Address, ask, choose
from engine.server.child_server import PREP, ChildServer
from engine.server.load_client import Load, Objective, Sent, due
from engine.sim.workload import SimRequest
from engine.zoo.registry import resolve

MODEL, PACED_MODEL = "dummy-103m", "shop"
VOCABULARY = DUMMIES[MODEL]["vocab_size"]
"""Token ids of both models."""
NUM_BLOCKS = 513
ENGINE: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": 512}
PACE = Pace(step_ms=15, token_ms=1)
"""Between the steps of MODEL alone on a core (10 ms + 0.7 ms per token) and of three replicas on two cores."""


class Prompts:
    """Requests of equal lengths whose prompts were never sent before."""

    def __init__(self) -> None:
        self._next = 900_000

    def equal(
        self, count: int, *, prompt: int = 48, output: int = 16, spacing: float = 0.0
    ) -> list[SimRequest]:
        """Return requests of equal lengths."""
        self._next += count
        first = self._next - count
        return [SimRequest(first + index, index * spacing, prompt, output) for index in range(count)]


@dataclass
class Answers:
    """Results of one load."""

    sent: list[Sent]
    other_cores: float
    """Cores that programs other than the fleet and its client used meanwhile."""


class LiveFleet:
    """A running fleet."""

    def __init__(self, address: Address) -> None:
        self.address, self.prompts = address, Prompts()

    def scale(self, number: int) -> None:
        """Change the number of replicas, and wait."""
        ask(self.address, "scale", {"replicas": number})
        self.wait(number)

    def wait(self, number: int) -> None:
        """Return when so many replicas are routed, and the processes of others have ended."""
        fleet = psutil.Process(self.address.pid)
        while (
            [replica["state"] for replica in self.status()["replicas"]] != ["ready"] * number
            or len(fleet.children()) > number + 1  # one more process removes its folder
        ):
            time.sleep(0.1)

    def status(self) -> dict[str, Any]:
        return ask(self.address, "status")

    def urls(self) -> list[str]:
        return [replica["url"] for replica in self.status()["replicas"]]

    def warm_up(self) -> None:
        """Let every replica compute batches and prompts of many sizes: the first of each size is slower."""
        for url in self.urls():
            work = [self.prompts.equal(1, prompt=24 + 8 * n, output=4 + 2 * n)[0] for n in range(16)]
            asyncio.run(_send(url, work))

    def burst(self, urls: Sequence[str], number: int, spacing: float) -> list[Sent]:
        """Send requests to each of these replicas at the same times."""

        async def run() -> list[Sent]:
            work = [self.prompts.equal(number, spacing=spacing) for _ in urls]
            sent = await asyncio.gather(*map(_send, urls, work))
            return [answer for part in sent for answer in part]

        return asyncio.run(run())

    def send(self, requests: Sequence[SimRequest], scale: tuple[float, int] | None = None) -> Answers:
        """Send requests to the gateway at their times; change the number of replicas in the middle."""

        async def change(at: float, number: int) -> None:
            await asyncio.sleep(at)
            await asyncio.to_thread(ask, self.address, "scale", {"replicas": number})

        async def run() -> list[Sent]:
            changing = [change(*scale)] if scale else []
            sending = asyncio.create_task(_send(self.address.url, requests))
            await asyncio.gather(sending, *changing)
            return await sending

        began, busy, own = time.monotonic(), machine_busy_seconds(), _own_seconds()
        sent = asyncio.run(run())
        others = machine_busy_seconds() - busy - (_own_seconds() - own)
        return Answers(sent, max(0.0, others) / (time.monotonic() - began))


def _own_seconds() -> float:
    """Return the processor time of this process and of all below it, the fleet's included."""
    me = psutil.Process()
    times = [process.cpu_times() for process in [me, *me.children(recursive=True)] if process.is_running()]
    return sum(spent.user + spent.system for spent in times)


async def _send(url: str, requests: Sequence[SimRequest]) -> list[Sent]:
    load = Load(url, "", None, Objective(), timeout_s=60)
    await load.run(due(requests, VOCABULARY))
    return load.sent


@contextmanager
def live_fleet(policy: str, replicas: int, *, is_paced: bool) -> Iterator[LiveFleet]:
    """Start a fleet; end it with all its processes."""
    name = f"bench-{os.getpid()}"
    options = {**ENGINE, "num_gpu_blocks_override": NUM_BLOCKS}
    with (
        bench_model(PACED_MODEL if is_paced else MODEL, options) as (model, engine),
        TemporaryDirectory(prefix="fleet-") as folder,
    ):
        if not is_paced:
            del engine["skip_tokenizer_init"]  # servers need one; shop's has as many ids
            for tokenizer in resolve("shop").glob("tokenizer*.json"):
                shutil.copy(tokenizer, model)
        file = Path(folder, "fleet.yaml")
        settings = {"name": name, "model": model, "replicas": replicas, "policy": policy, "engine": engine}
        file.write_text(yaml.safe_dump(settings | {"oversubscribe": True}))
        module = MODULE if is_paced else PREP
        args = [PACE.as_json(), str(file)] if is_paced else ["fleet", "up", str(file)]
        with ChildServer(module, args=args, name="the fleet", log=Path(folder, "log"), grace_s=40):
            fleet = LiveFleet(choose(name))
            fleet.wait(replicas)
            fleet.warm_up()
            yield fleet
