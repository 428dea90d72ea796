"""Time from a request to its first served token, by the state in which the request finds the server.

ready       a replica of a fleet serves
warm pool   none serves, one of the pool is started: the gateway holds the request, the fleet routes to the replica
asleep      a server whose engine sleeps: POST /wake_up, then the request
cold        no process runs: the gateway holds the request, the fleet starts a replica

Fleets are those of `prep fleet up` with `min_replicas: 0`, servers those of `prep serve`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import httpx
import yaml

from app.bench.timing import Tell, partial_results
from engine.config import ConfigError
from engine.fleet.folder import Address, ask, find
from engine.server.answers import EventStream
from engine.server.child_server import PREP, ChildServer
from prep_common.child_process import ProcessEnded

ENGINE = {"max_model_len": 512, "max_num_seqs": 16}
NEVER_IN = {"signal": "load", "out_above": 1000.0, "in_below": 0.001, "sustain_in": 3600.0, "interval": 1.0}
"""The benchmark scales to zero itself."""
PATIENCE_S = 120.0


@dataclass
class FirstServed:
    """Seconds from a request to its first token, by state; one number per run."""

    model: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    interrupted: bool = False

    def add(self, state: str, seconds: float) -> None:
        self.seconds.setdefault(state, []).append(seconds)

    @property
    def medians(self) -> dict[str, float]:
        """Seconds by state, from the fastest to the slowest."""
        medians = {state: median(times) for state, times in self.seconds.items()}
        return dict(sorted(medians.items(), key=lambda item: item[1]))


def measure(tell: Tell, model: str, *, runs: int = 3) -> FirstServed:
    """Run the benchmark; Ctrl-C ends it early with the runs that are done."""
    report = FirstServed(model)
    with partial_results(report):
        for pool in (0, 1):
            _measure_fleet(tell, report, pool, runs)
        _measure_sleep(tell, report, runs)
    return report


def _measure_fleet(tell: Tell, report: FirstServed, pool: int, runs: int) -> None:
    state = "warm pool" if pool else "cold"
    with _fleet(report.model, pool) as fleet:
        for number in range(runs):
            tell(f"{state}, run {number + 1} of {runs}")
            ask(fleet, "scale", {"replicas": 0})
            _until(lambda: _states(fleet) == ["warm"] * pool)
            report.add(state, first_token(fleet.url, report.model))
            if not pool:  # with a pool, the next replica of it starts at the same time
                report.add("ready", first_token(fleet.url, report.model))


def _measure_sleep(tell: Tell, report: FirstServed, runs: int) -> None:
    words = [word for name, value in ENGINE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with TemporaryDirectory(prefix="server-") as folder:
        args = ["serve", report.model, "--enable-sleep-mode", *words]
        with ChildServer(PREP, args=args, name="the server", log=Path(folder, "log")) as server:
            for number in range(runs):
                tell(f"asleep, run {number + 1} of {runs}")
                httpx.post(f"{server.url}/sleep", timeout=PATIENCE_S).raise_for_status()
                began = perf_counter()
                httpx.post(f"{server.url}/wake_up", timeout=PATIENCE_S).raise_for_status()
                first_token(server.url, report.model)
                report.add("asleep", perf_counter() - began)


def first_token(url: str, model: str) -> float:
    """Return the seconds from a request to its first token. Raises ConfigError if it is refused."""
    body = {"model": model, "prompt": "Hello", "max_tokens": 4, "temperature": 0, "stream": True}
    began = perf_counter()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE_S) as response:
        if response.status_code != 200:
            raise ConfigError(f"the server refused the request: {response.read().decode()}")
        stream = EventStream()
        for received in response.iter_bytes():
            stream.feed(received)
            if stream.num_chunks:
                return perf_counter() - began
            if stream.error is not None or stream.is_over:
                break
    what = "an empty answer" if stream.fault is None else stream.fault.what
    raise ConfigError(f"the server sent no token: {what}")


@contextmanager
def _fleet(model: str, pool: int) -> Iterator[Address]:
    """Run `prep fleet up` with no replica that serves, and so many in the pool."""
    name = f"bench-start-{os.getpid()}"
    scale = NEVER_IN | {"min_replicas": 0, "max_replicas": 1}
    settings = {
        "name": name, "model": model, "replicas": 0, "warm_pool": pool, "autoscale": scale, "port": 0,
        "engine": ENGINE, "oversubscribe": True, "hold": {"timeout_s": PATIENCE_S},
    }  # fmt: skip
    with TemporaryDirectory(prefix="fleet-") as folder:
        file, log = Path(folder, "fleet.yaml"), Path(folder, "log")
        file.write_text(yaml.safe_dump(settings))
        with ChildServer(
            PREP, args=["fleet", "up", str(file)], name="the fleet", log=log, grace_s=40, wait=False
        ) as server:  # its /health is 503 as long as no replica serves
            _until(lambda: find(name) is not None or not server.is_running)
            if (fleet := find(name)) is None:
                raise ProcessEnded("the fleet", server.exit_code(), last_words=server.log_tail())
            yield fleet


def _states(fleet: Address) -> list[str]:
    return [replica["state"] for replica in ask(fleet, "status")["replicas"]]


def _until(holds: Callable[[], bool]) -> None:
    deadline = perf_counter() + PATIENCE_S
    while not holds():
        if perf_counter() > deadline:
            raise ConfigError(f"the fleet is not where it should be after {PATIENCE_S:g} s")
        time.sleep(0.05)
