"""The simulator of a live fleet, calibrated on it.

routing   the gateway's own code, with what it knows: requests under way, so far, and beginnings of prompts sent
steps     paced: the pace, and the measured rest of a step
          unpaced: rates of an engine in this process x slowdown by busy replicas (engine/sim/shared_cores.py)
HTTP      a constant: client to engine and back, measured with requests that are alone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest
from statistics import mean, median
from typing import Any

from app.bench.calibrate import LARGE_MODEL, deployment_of, fit, live_core, probe
from app.bench.live_fleet import ENGINE, MODEL, NUM_BLOCKS, PACE, PACED_MODEL, VOCABULARY, LiveFleet
from engine.config import CacheConfig
from engine.gateway.backend import Backend, GatewayRequest
from engine.gateway.config import BackendSettings
from engine.gateway.limits import CircuitBreaker
from engine.gateway.route import Route
from engine.server.load_client import Sent, prompt_ids
from engine.sim.cost import CostModel, Rates, StepLoad
from engine.sim.engine import SimEngine
from engine.sim.hardware import this_cpu
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.recorder import RequestRecord
from engine.sim.router import R
from engine.sim.run import scheduler_config
from engine.sim.shared_cores import Change, Cores, SharedCost, SharedFleet, Slowdown
from engine.sim.workload import SimRequest

BURST, BURSTS, SPACING_S = 4, 5, 0.012
"""Requests of a calibration burst for each replica, bursts, and seconds between two requests: the first prompt takes
longer than that, so the others share the second step, live and simulated."""
TURNS = 6
"""Turns after which a round over one, two or three replicas starts anew."""


class PacedCost(CostModel):
    """Steps of app/bench/paced_fleet.py; `rest_s`: what a live step takes beyond its pace."""

    def __init__(self, deployment: Deployment, rest_s: float) -> None:
        super().__init__(deployment)
        self._rest_s = rest_s

    def seconds(self, load: StepLoad) -> float:
        return PACE.seconds(load.num_tokens) + self._rest_s

    def decode_seconds(self, num_rows: int, context: int) -> float:
        return PACE.seconds(num_rows) + self._rest_s


class GatewayRouter:
    """Routes simulated requests by the gateway's code."""

    needs_state = True

    def __init__(self, policy: str, num_requests: Sequence[int] = (), num_arrivals: int = 0) -> None:
        """num_requests: of each backend so far. num_arrivals: requests of the gateway so far."""
        self._backends = [_backend(index, number) for index, number in enumerate(num_requests or [0])]
        self._route = Route(self._backends, policy, None)
        nothing = GatewayRequest.of("", "", {})
        for _ in range(num_arrivals % TURNS):  # the turn of round-robin goes on from there
            self._route.decide(nothing, 0.0)

    def choose(self, request: Any, core: Any, ready: Sequence[R]) -> R:
        by_index = {replica.index: replica for replica in ready}
        while len(self._backends) <= max(by_index):
            self._backends.append(_backend(len(self._backends)))
        for backend in self._backends:
            backend.is_draining = backend.index not in by_index
            if not backend.is_draining:
                replica = by_index[backend.index]
                backend.load, backend.tokens = replica.load, replica.tokens
        name = str(core.request_id)
        asked = GatewayRequest.of(name, "", {"prompt": prompt_ids(request, VOCABULARY)})
        chosen, _ = self._route.decide(asked, request.arrival)
        assert chosen is not None  # one replica at least is ready
        chosen.begin(asked, request.arrival)
        return by_index[chosen.index]


def _backend(index: int, num_requests: int = 0) -> Backend:
    settings = BackendSettings(name=f"r{index}", url="http://simulated")
    return Backend(index, settings, CircuitBreaker(1, 1.0), num_requests=num_requests)


@dataclass(frozen=True)
class Model:
    """The calibrated simulator of a fleet."""

    deployment: Deployment
    rates: Rates | None = None
    """None: paced."""
    http_s: float = 0.0
    """Client to engine and back."""
    rest_s: float = 0.0
    """Seconds of a paced step beyond its pace."""
    slowdown: Sequence[Slowdown] = field(default=(Slowdown(),))
    """Slowdown of unpaced steps by busy replicas."""

    def cost(self, cores: Cores) -> CostModel:
        """Return the cost of steps on shared cores."""
        if self.rates is None:
            return PacedCost(self.deployment, self.rest_s)
        return SharedCost(self.deployment, self.rates, cores)

    def run(
        self,
        requests: Sequence[SimRequest],
        replicas: int,
        router: GatewayRouter,
        changes: Sequence[Change] = (),
    ) -> list[RequestRecord]:
        """Return the records of all requests, without the HTTP path."""
        cores = Cores(self.slowdown)

        def engine() -> SimEngine:
            cache = CacheConfig(NUM_BLOCKS, self.deployment.block_size, enable_prefix_caching=True)
            return SimEngine(scheduler_config(self.deployment), cache, self.cost(cores))

        fleet = SharedFleet(engine, replicas, router, cores)
        fleet.serve(requests, changes)
        return [record for replica in fleet.replicas for record in replica.engine.recorder.finished]

    def answers(
        self,
        requests: Sequence[SimRequest],
        replicas: int,
        router: GatewayRouter,
        changes: Sequence[Change] = (),
    ) -> list[Sent]:
        """Return the answers as the load client would see them."""
        return [
            Sent(
                due=record.arrival,
                num_prompt_tokens=record.request.prompt_len,
                first=record.arrival + record.ttft + self.http_s,
                last=record.arrival + record.e2e + self.http_s,
                num_tokens=record.request.output_len,
            )
            for record in self.run(requests, replicas, router, changes)
        ]

    def alone(self, requests: Sequence[SimRequest]) -> list[RequestRecord]:
        """Return the records of one replica."""
        return self.run(requests, 1, GatewayRouter("round-robin"))

    def calibrated(self, fleet: LiveFleet) -> Model:
        """Measure the HTTP path, and the rest of a paced step, with prompts of two tokens that are alone."""
        lone = fleet.prompts.equal(8, prompt=2, spacing=0.25)
        live, simulated = fleet.send(lone).sent[2:], self.alone(lone)
        ttft, tpot = (median(getattr(answer, name) for answer in live) for name in ("ttft", "tpot"))
        steps, gap = (median(getattr(record, name) for record in simulated) for name in ("ttft", "tpot"))
        if self.rates is None:
            rest = max(0.0, tpot - gap)
            return replace(self, rest_s=rest, http_s=max(0.0, ttft - steps - rest))
        return replace(self, http_s=max(0.0, ttft - steps * tpot / gap))

    def slowdowns(self, fleet: LiveFleet) -> list[Slowdown]:
        """Measure steps with 1, 2, ... busy replicas: bursts at the replicas themselves; none if paced."""
        if self.rates is None:
            return []
        simulated = self.alone(fleet.prompts.equal(BURST, spacing=SPACING_S))
        ttft, rest = (
            mean(record.ttft for record in simulated),
            mean(record.e2e - record.ttft for record in simulated),
        )
        slowdowns = []
        for urls in accumulate([url] for url in fleet.urls()):
            bursts = [fleet.burst(urls, BURST, SPACING_S) for _ in range(BURSTS)]
            # Medians over the bursts: one hiccup of the machine would otherwise slow the whole simulation down.
            prompt = median(mean(answer.ttft for answer in sent) for sent in bursts) - self.http_s
            decodes = median(mean(answer.e2e - answer.ttft for answer in sent) for sent in bursts)
            slowdowns.append(Slowdown(prompt / ttft, decodes / rest))
        return slowdowns

    def slowed(self, *measured: Sequence[Slowdown]) -> Model:
        """Return it with the mean of measured slowdowns, for each number of replicas that has one."""
        both = [[slowdown for slowdown in pair if slowdown is not None] for pair in zip_longest(*measured)]
        means = [Slowdown(mean(e.prompt for e in pair), mean(e.decode for e in pair)) for pair in both]
        return replace(self, slowdown=means) if means else self


def unpaced() -> Model:
    """Fit the rates of a step to the engine in this process."""
    with live_core(MODEL, engine=ENGINE) as core:
        deployment = deployment_of(core, MODEL)
        probe(core, LARGE_MODEL, seed=-1)
        timed = [step for number in range(2) for step in probe(core, LARGE_MODEL, number)]
        return Model(deployment, fit(deployment, timed).rates)


def paced() -> Model:
    """Return the simulator of paced replicas."""
    return Model(Deployment(get_model(PACED_MODEL), this_cpu(), dtype="float32", **ENGINE))


MODELS: dict[bool, Callable[[], Model]] = {True: paced, False: unpaced}
"""Calibrations by `is_paced`."""
