"""A simulated fleet against a live one: the same requests, goodput and the slowest percent.

    prep fleet up ---> in-process probe: rates of a step          (app/bench/calibrate.py)
                       one request at a time: HTTP path
                  ---> each scenario: bursts on 1, 2, 3 replicas: slowdown by busy replicas (engine/sim/shared_cores.py)
                       live, by the open-loop client; bursts again; then simulated

Everything is measured in one run, next to what it is for, since the speed of a shared machine drifts. The model is a
shape with random weights whose step takes about 10 ms, much longer than the HTTP path: engines decide, not JSON.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, zip_longest
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
import yaml

from app.bench.calibrate import LARGE_PARAMS, deployment_of, fit, live_core, probe
from app.bench.models import DUMMIES, bench_model
from app.bench.timing import Tell, partial_results
from common.percentile import percentile
from engine.config import CacheConfig
from engine.fleet.folder import Address, ask, choose
from engine.server.child_server import PREP, ChildServer
from engine.server.load_client import Load, Objective, Sent, due
from engine.sim.cost import Rates
from engine.sim.engine import SimEngine
from engine.sim.memory import Deployment
from engine.sim.recorder import RequestRecord
from engine.sim.router import make_router
from engine.sim.run import scheduler_config
from engine.sim.shared_cores import Change, Cores, SharedCost, SharedFleet, Slowdown
from engine.sim.workload import Lengths, SimRequest, Workload
from engine.zoo.registry import resolve

MODEL = "dummy-103m"
NUM_BLOCKS = 513
ENGINE = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "max_model_len": 512}
BAR = 0.15
GOOD = Objective(ttft=0.3, e2e=0.75)
SHORT, LONG = Lengths(24, 72), Lengths(96, 160)
BURST = 4
"""Requests at once for each replica in a calibration burst."""


@dataclass(frozen=True)
class Scenario:
    """Traffic on a fleet. `scale`: seconds after the start, and the replicas from then on."""

    name: str
    policy: str
    replicas: int
    rate: float
    prompt: Lengths = SHORT
    output: Lengths = Lengths(8, 24)
    num_prefixes: int = 0
    prefix_len: int = 0
    scale: tuple[float, int] | None = None

    def requests(self, seconds: float, number: int) -> list[SimRequest]:
        """Return its requests. `number` keeps prompts of two scenarios apart, so that caches do not know them."""
        work = Workload(
            round(self.rate * seconds), self.rate, self.prompt, self.output,
            num_prefixes=self.num_prefixes, prefix_len=self.prefix_len, seed=number,
        )  # fmt: skip
        first = 1000 * (number + 1)
        return [
            replace(
                each,
                index=each.index + first,
                prefix_id=each.prefix_id + first if each.prefix_id >= 0 else -1,
            )
            for each in work
        ]


ROUND_ROBIN, AFFINITY = "round-robin", "prefix-affinity"
SCENARIOS = (
    Scenario("three", ROUND_ROBIN, 3, 8.0),
    Scenario("two", ROUND_ROBIN, 2, 7.0),
    Scenario("one", ROUND_ROBIN, 1, 4.0),
    Scenario("one, then two", ROUND_ROBIN, 1, 5.0, scale=(2.0, 2)),
    Scenario("three, prefixes", AFFINITY, 3, 8.0, LONG, num_prefixes=6, prefix_len=80),
    Scenario("two, prefixes", AFFINITY, 2, 6.0, LONG, num_prefixes=4, prefix_len=80),
    Scenario("two, long prompts", AFFINITY, 2, 4.0, LONG),
    Scenario("one, prefixes", AFFINITY, 1, 4.0, LONG, num_prefixes=3, prefix_len=80),
)
"""Replicas descend within a policy: only the scale event starts one."""


@dataclass
class Figures:
    """Results of one side. Seconds; goodput in requests per second."""

    goodput: float
    ttft_p99: float
    e2e_p99: float
    num_failed: int = 0


@dataclass
class Outcome:
    scenario: str
    num_requests: int
    live: Figures
    simulated: Figures
    slowdown: list[Slowdown] = field(default_factory=list)

    def errors(self) -> dict[str, float]:
        """Return (simulated - live) / live by figure."""
        pairs = {name: (getattr(self.simulated, name), getattr(self.live, name)) for name in COMPARED}
        return {
            name: (sim - live) / live if live else float(sim != live) for name, (sim, live) in pairs.items()
        }

    @property
    def is_within(self) -> bool:
        return all(abs(error) <= BAR for error in self.errors().values())


COMPARED = ("goodput", "ttft_p99", "e2e_p99")


@dataclass
class FleetCheck:
    """Results of the calibration, and of every scenario on both sides."""

    http_s: float = 0.0
    """Client to engine and back, of the first token."""
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False


def check(tell: Tell, names: Sequence[str] = (), *, seconds: float = 8.0) -> FleetCheck:
    """Calibrate, then run scenarios; by default all."""
    chosen = [each for each in SCENARIOS if not names or each.name in names]
    report = FleetCheck()
    torch.set_num_threads(1)  # as the replicas
    tell("timing steps")
    plain = _probe()
    with partial_results(report):
        for policy in dict.fromkeys(each.policy for each in chosen):
            mine = [each for each in chosen if each.policy == policy]
            tell(f"starting a fleet, {policy}")
            with live_fleet(policy, max(each.replicas for each in mine)) as fleet:
                report.http_s = _http_seconds(fleet, plain)
                for scenario in mine:
                    tell(f"{scenario.name}: {seconds:g} s")
                    report.outcomes.append(_compare(fleet, plain, scenario, seconds, report.http_s))
    return report


@dataclass
class Model:
    """The calibrated simulator."""

    deployment: Deployment
    rates: Rates
    slowdown: Sequence[Slowdown] = (Slowdown(),)

    def run(
        self, requests: Sequence[SimRequest], replicas: int, policy: str, changes: Sequence[Change] = ()
    ) -> list[RequestRecord]:
        """Return the records of all requests."""
        cores = Cores(self.slowdown)

        def engine() -> SimEngine:
            cost = SharedCost(self.deployment, self.rates, cores)
            cache = CacheConfig(NUM_BLOCKS, self.deployment.block_size, enable_prefix_caching=True)
            return SimEngine(scheduler_config(self.deployment), cache, cost)

        fleet = SharedFleet(engine, replicas, make_router(policy), cores)
        fleet.serve(requests, changes)
        return [record for each in fleet.replicas for record in each.engine.recorder.finished]


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


class LiveFleet:
    """A running `prep fleet up`."""

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
            [each["state"] for each in self.status()["replicas"]] != ["ready"] * number
            or len(fleet.children()) > number + 1  # one more process removes its folder
        ):
            time.sleep(0.1)

    def status(self) -> dict[str, Any]:
        return ask(self.address, "status")

    def urls(self) -> list[str]:
        return [each["url"] for each in self.status()["replicas"]]

    def warm_up(self) -> None:
        """Let every replica compute batches and prompts of many sizes: the first of each size is slower."""
        for url in self.urls():
            work = [self.prompts.equal(1, prompt=24 + 8 * n, output=4 + 2 * n)[0] for n in range(16)]
            asyncio.run(_send(url, work))

    def burst(self, urls: Sequence[str]) -> list[Sent]:
        """Send BURST requests at once to each of these replicas."""

        async def run() -> list[Sent]:
            sent = await asyncio.gather(*(_send(url, self.prompts.equal(BURST)) for url in urls))
            return [each for part in sent for each in part]

        return asyncio.run(run())

    def send(self, requests: Sequence[SimRequest], scale: tuple[float, int] | None = None) -> list[Sent]:
        """Send requests to the gateway at their times; change the number of replicas in the middle."""

        async def change(at: float, number: int) -> None:
            await asyncio.sleep(at)
            await asyncio.to_thread(ask, self.address, "scale", {"replicas": number})

        async def run() -> list[Sent]:
            changing = [change(*scale)] if scale else []
            sending = asyncio.create_task(_send(self.address.url, requests))
            await asyncio.gather(sending, *changing)
            return await sending

        return asyncio.run(run())


async def _send(url: str, requests: Sequence[SimRequest]) -> list[Sent]:
    load = Load(url, "", None, GOOD, timeout_s=60)
    await load.run(due(requests, DUMMIES[MODEL]["vocab_size"]))
    return load.sent


@contextmanager
def live_fleet(policy: str, replicas: int) -> Iterator[LiveFleet]:
    """Start `prep fleet up` with the benchmark's model; end it with all its processes."""
    name = f"bench-{os.getpid()}"
    with bench_model(MODEL, {**ENGINE, "num_gpu_blocks_override": NUM_BLOCKS}) as (model, engine):
        with TemporaryDirectory(prefix="fleet-") as folder:
            file = Path(folder, "fleet.yaml")
            del engine["skip_tokenizer_init"]  # servers need one; shop's has as many ids
            for tokenizer in resolve("shop").glob("tokenizer*.json"):
                shutil.copy(tokenizer, model)
            settings = {
                "name": name,
                "model": model,
                "replicas": replicas,
                "policy": policy,
                "engine": engine,
            }
            file.write_text(yaml.safe_dump(settings | {"oversubscribe": True}))
            with ChildServer(
                PREP, args=["fleet", "up", str(file)], name="the fleet", log=Path(folder, "log"), grace_s=40
            ):
                fleet = LiveFleet(choose(name))
                fleet.wait(replicas)
                fleet.warm_up()
                yield fleet


def _probe() -> Model:
    """Fit the rates of a step to the engine in this process."""
    settings = {**ENGINE, "enable_prefix_caching": True}
    with live_core(MODEL, settings) as core:
        deployment = deployment_of(core, MODEL)
        cases = LARGE_PARAMS + 1  # the shorter list of steps
        probe(core, cases, seed=-1)
        timed = [step for number in range(2) for step in probe(core, cases, number)]
        return Model(deployment, fit(MODEL, deployment, timed).rates)


def _http_seconds(fleet: LiveFleet, plain: Model) -> float:
    """Measure the path from client to engine and back, by prompts of two tokens that are alone."""
    alone = fleet.prompts.equal(8, prompt=2, spacing=0.25)
    live, simulated = fleet.send(alone)[2:], plain.run(alone, 1, ROUND_ROBIN)
    slowdown = median(each.tpot for each in live) / median(each.tpot for each in simulated)
    return max(0.0, median(each.ttft for each in live) - slowdown * median(each.ttft for each in simulated))


def _slowdowns(fleet: LiveFleet, plain: Model, http_s: float) -> list[Slowdown]:
    """Measure steps with 1, 2, ... busy replicas: bursts at the replicas themselves, against the plain simulation."""
    simulated = plain.run(fleet.prompts.equal(BURST), 1, ROUND_ROBIN)
    ttft, rest = mean(each.ttft for each in simulated), mean(each.e2e - each.ttft for each in simulated)
    found = []
    for urls in accumulate([url] for url in fleet.urls()):
        sent = [each for _ in range(2) for each in fleet.burst(urls)]
        prompt = (mean(each.ttft for each in sent) - http_s) / ttft
        found.append(Slowdown(prompt, mean(each.e2e - each.ttft for each in sent) / rest))
    return found


def _mean_slowdowns(one: Sequence[Slowdown], other: Sequence[Slowdown]) -> list[Slowdown]:
    """Return the mean where both have a figure."""
    pairs = zip_longest(one, other)
    both = [[each for each in pair if each is not None] for pair in pairs]
    return [Slowdown(mean(e.prompt for e in pair), mean(e.decode for e in pair)) for pair in both]


def _compare(fleet: LiveFleet, plain: Model, scenario: Scenario, seconds: float, http_s: float) -> Outcome:
    """Run one scenario live, between two calibrations, then simulated: the speed of a shared machine drifts."""
    number = SCENARIOS.index(scenario)
    requests = scenario.requests(seconds, number)
    fleet.scale(scenario.replicas)
    before = _slowdowns(fleet, plain, http_s)
    sent = fleet.send(requests, scenario.scale)
    if scenario.scale:
        fleet.wait(scenario.scale[1])
    slowdown = _mean_slowdowns(before, _slowdowns(fleet, plain, http_s))
    start_s = float(fleet.status()["replicas"][-1]["start_s"])
    changes = [Change(*scenario.scale, start_s=start_s)] if scenario.scale else []
    records = replace(plain, slowdown=slowdown).run(requests, scenario.replicas, scenario.policy, changes)
    simulated = [(each.ttft + http_s, each.e2e + http_s, each.last_token) for each in records]
    live = [(each.ttft, each.e2e, each.last) for each in sent if not each.error]
    return Outcome(
        scenario.name, len(requests), _figures(live, len(sent) - len(live)), _figures(simulated, 0), slowdown
    )


def _figures(times: Sequence[tuple[float, float, float]], num_failed: int) -> Figures:
    """times: TTFT, end to end, and the moment of the last token, of every finished request."""
    assert GOOD.ttft is not None and GOOD.e2e is not None
    good = sum(ttft <= GOOD.ttft and e2e <= GOOD.e2e for ttft, e2e, _ in times)
    ttft_p99, e2e_p99 = (percentile(sorted(each[index] for each in times), 99) for index in (0, 1))
    return Figures(good / max(last for _, _, last in times), ttft_p99, e2e_p99, num_failed)


def as_json(report: FleetCheck) -> dict[str, Any]:
    """Return the report with its errors."""
    outcomes = [
        {**asdict(each), "errors": each.errors(), "is_within": each.is_within} for each in report.outcomes
    ]
    return {**asdict(report), "bar": BAR, "outcomes": outcomes}
