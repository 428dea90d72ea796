"""Replicas that share the processors of one machine, so that a busy replica slows the others down.

    seconds of a step = cost model x slowdown(k, kind)   k: replicas that are busy or start at that moment
                                                         kind: with a prompt, or decodes only

With c processors and a demand of d processors per busy replica (its engine, and its share of the HTTP path), plain
time sharing gives slowdown(k) = max(1, k d / c). Prompts are bound by arithmetic and decodes by memory bandwidth, which
cores share in different ways, so `prep bench fleet` measures both for 1, 2, ... replicas instead. All replicas advance
together in slices of SLICE_S.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.sim.cost import CostModel, Rates, StepLoad
from engine.sim.engine import SimEngine
from engine.sim.fleet import Fleet, FleetReport
from engine.sim.memory import Deployment
from engine.sim.router import Replica, Router
from engine.sim.workload import SimRequest

SLICE_S = 0.002


@dataclass(frozen=True)
class Slowdown:
    """Factors on the seconds of a step that computes a prompt, and of one that decodes only."""

    prompt: float = 1.0
    decode: float = 1.0


@dataclass
class Cores:
    """Slowdown of a step by the number of busy replicas; the last one holds for more."""

    slowdown: Sequence[Slowdown]
    num_busy: int = 0

    @property
    def now(self) -> Slowdown:
        return self.slowdown[min(max(1, self.num_busy), len(self.slowdown)) - 1]


class SharedCost(CostModel):
    """A cost model whose steps take longer while other replicas are busy."""

    def __init__(self, deployment: Deployment, rates: Rates, cores: Cores) -> None:
        super().__init__(deployment, rates)
        self._cores = cores

    def seconds(self, load: StepLoad) -> float:
        slowdown = self._cores.now
        return super().seconds(load) * (slowdown.decode if load.is_replayed else slowdown.prompt)

    def decode_seconds(self, num_rows: int, context: int) -> float:
        return super().decode_seconds(num_rows, context) * self._cores.now.decode


@dataclass(frozen=True)
class Change:
    """Another number of replicas from a moment on. A new one serves after `start_s`, and is busy until then."""

    at: float
    replicas: int
    start_s: float = 0.0


class SharedFleet(Fleet):
    """A fleet on one machine; its size follows a plan."""

    def __init__(
        self, make_engine: Callable[[], SimEngine], num_replicas: int, router: Router, cores: Cores
    ) -> None:
        """make_engine: returns engines whose cost is a `SharedCost` over `cores`."""
        super().__init__(make_engine, num_replicas, router)
        self._cores, self._now = cores, 0.0

    def serve(self, requests: Iterable[SimRequest], changes: Sequence[Change] = ()) -> FleetReport:
        """Serve all requests and report."""
        planned = deque(sorted(changes, key=lambda change: change.at))
        for request in requests:
            while planned and planned[0].at <= request.arrival:
                self._change(planned.popleft())
            self._advance(request.arrival)
            self._route(request)
        while any(replica.engine.num_unfinished for replica in self.replicas):
            self._advance(self._now + 1.0)
        return self._report(max(replica.engine.now for replica in self.replicas))

    def _change(self, change: Change) -> None:
        self._advance(change.at)
        more = change.replicas - self._num_serving()
        for _ in range(more):
            ready_at = change.at + change.start_s
            self.replicas.append(
                Replica(len(self.replicas), self.make_engine(), "starting", change.at, ready_at)
            )
        for _ in range(-more):
            self._remove(change.at, 0.0)
        self.change_states()

    def _advance(self, when: float) -> None:
        """Run all replicas until `when`, in slices with one slowdown each."""
        while self._now < when:
            is_starting = [replica.state == "starting" for replica in self.replicas]
            has_work = [replica.engine.num_unfinished > 0 for replica in self.replicas]
            self._cores.num_busy = sum(map(max, is_starting, has_work))
            self._now = min(self._now + SLICE_S, when) if self._cores.num_busy else when
            for replica in self.replicas:
                replica.engine.run_until(self._now)
                if replica.state == "starting" and replica.ready_at <= self._now:
                    replica.state = "ready"
                    self.change_states()
