"""Several replicas behind a router, scaled with the load.

        requests --> router --> replica 0   [scheduler, KV]  clock 0
                        |-----> replica 1   [scheduler, KV]  clock 1         each runs up to "now" when it is
                        |-----> replica 2   ...                              looked at or given something to do
                     autoscaler: start, drain, stop

Replicas meet only through the router, so each may lag behind the others in wall time; none is ever ahead of the moment
of a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.config import ConfigError
from engine.core.request import Request
from engine.sim.autoscaler import AutoscalerConfig, EventKind, ScaleEvent, count_thrash
from engine.sim.engine import SimEngine
from engine.sim.recorder import RequestRecord
from engine.sim.report import RunReport, summarise
from engine.sim.route_log import RouteLog
from engine.sim.router import Replica, ReplicaReport, Router
from engine.sim.scaling_policies import Asymmetric, Look, ScalingPolicy, signal_of
from engine.sim.workload import SimRequest, Tell, make_request


@dataclass
class FleetReport:
    """Figures of the whole run and of each replica."""

    run: RunReport
    replicas: list[ReplicaReport]
    balance: float  # maximum requests of a replica over the mean; 1 is even
    replica_seconds: float  # billed time from start to stop, including starting and draining
    events: list[ScaleEvent] = field(default_factory=list)
    num_out: int = 0
    num_in: int = 0
    thrash: int = 0  # changes undone by the next one within 15 minutes
    overload_seconds: float = 0.0
    reaction_seconds: float | None = None  # mean time from the decision to grow until the new replica serves


class Fleet:
    """Colocated replicas: each does prefill and decode."""

    def __init__(
        self,
        make_engine: Callable[[], SimEngine],
        num_replicas: int,
        router: Router,
        autoscaler: AutoscalerConfig | None = None,
        policy: ScalingPolicy | None = None,
        cold_start: float = 120.0,
        log: RouteLog | None = None,
    ) -> None:
        """policy: instead of `autoscaler`, which has starting times of its own; log: records each decision."""
        if num_replicas < 1:
            raise ConfigError(f"a fleet has at least one replica, got {num_replicas}")
        if autoscaler is not None and autoscaler.min_replicas < 1:
            raise ConfigError(
                "a simulated fleet holds no requests, so min_replicas must be at least 1, got 0"
            )
        self.make_engine = make_engine
        self.router = router
        self.log = log
        self.replicas = [Replica(index, make_engine()) for index in range(num_replicas)]
        self.policy = Asymmetric(autoscaler) if autoscaler else policy
        self.config = autoscaler
        self._ready = list(self.replicas)  # the replicas in the state "ready", in order
        self._narrow = getattr(router, "narrow", None)
        self.events: list[ScaleEvent] = []
        self._cold_start = autoscaler.cold_start if autoscaler else cold_start
        self._next_look = self.policy.interval if self.policy else float("inf")
        self._warm = autoscaler.warm_pool if autoscaler else 0
        self._arrivals = 0
        self._busy_seconds = 0.0

    def run(self, requests: Iterable[SimRequest], tell: Tell | None = None) -> FleetReport:
        """Serve all requests and report."""
        for number, request in enumerate(requests):
            self.look_until(request.arrival)
            if self.log is not None:
                self.log.look_until(request.arrival, self.replicas)
            self._route(request)
            if tell is not None and number % 256 == 0:
                tell(number)
        end = self._finish()
        return self._report(end)

    def _route(self, request: SimRequest) -> None:
        now, core = request.arrival, make_request(request)
        replica = self.choose(request, core)
        if replica is None:
            raise RuntimeError("no replica is ready")
        replica.submit(core, RequestRecord(request, arrival=now, replica=replica.index), now)

    def choose(self, request: SimRequest, core: Request) -> Replica | None:
        """Route a request and advance its replica to the arrival. Return None if no replica is ready."""
        now, ready = request.arrival, self._ready
        if not ready:
            return None
        if self._narrow is not None:
            ready = self._narrow(ready)
        if self.router.needs_state:
            for replica in ready:
                replica.engine.run_until(now)
        replica = self.router.choose(request, core, ready)
        replica.engine.run_until(now)
        if self.log is not None:
            self.log.note(request, core, replica, ready, self.router)
        self._arrivals += 1
        return replica

    def _finish(self) -> float:
        """Run the replicas to their end, with autoscaling. Return the time of the last token."""
        while self.policy is not None and any(replica.engine.num_unfinished for replica in self.replicas):
            self.look_until(self._next_look)
        while self.log is not None and any(replica.engine.num_unfinished for replica in self.replicas):
            self.log.look(self.replicas)
        for replica in self.replicas:
            replica.engine.run_until(float("inf"))
        return max((replica.engine.now for replica in self.replicas), default=0.0)

    def look_until(self, when: float) -> None:
        """Let the autoscaler look at the replicas at every interval until `when`."""
        while self._next_look <= when and self.policy is not None:
            self._look(self._next_look, self.policy)
            self._next_look += self.policy.interval

    def _look(self, now: float, policy: ScalingPolicy) -> None:
        for replica in self.replicas:
            if replica.state != "stopped":
                replica.engine.run_until(now)
            if replica.state == "starting" and replica.ready_at <= now:
                replica.state = "ready"
                self._log(replica.ready_at, "ready", replica, 0.0)
            if replica.state == "draining" and not replica.engine.num_unfinished:
                replica.state, replica.stopped = "stopped", now
                self._log(now, "stopped", replica, 0.0)
        self.change_states()
        look = self._see(now, policy.interval)
        change = policy.desired(look) - look.serving
        signal = signal_of(look, self.config.signal if self.config else "load", look.ready)
        for _ in range(change):
            self._start(now, signal)
        for _ in range(-change):
            self._remove(now, signal)
        self.change_states()

    def _see(self, now: float, interval: float) -> Look:
        ready = [replica.engine for replica in self._ready]
        starting = sum(replica.state == "starting" for replica in self.replicas)
        arrivals, self._arrivals = self._arrivals, 0
        before = self._busy_seconds
        self._busy_seconds = sum(replica.engine.recorder.step_seconds for replica in self.replicas)
        return Look(
            now,
            len(ready),
            starting,
            waiting=sum(len(engine.scheduler.waiting) for engine in ready),
            unfinished=sum(engine.num_unfinished for engine in ready),
            kv=sum(engine.kv_cache_usage for engine in ready),
            rate=arrivals / interval,
            busy=min(1.0, (self._busy_seconds - before) / (interval * max(1, len(ready)))),
        )

    def _start(self, now: float, signal: float) -> None:
        """Start a replica, from the warm pool if it has one; the refill of the pool is not modelled."""
        delay = self.config.warm_start if self.config and self._warm else self._cold_start
        self._warm = max(0, self._warm - 1)
        replica = Replica(len(self.replicas), self.make_engine(), "starting", now, now + delay)
        self.replicas.append(replica)
        self._log(now, "out", replica, signal)

    def _remove(self, now: float, signal: float) -> None:
        """Cancel the newest start, else drain the ready replica with the fewest requests; it stops when it is empty."""
        starting = [replica for replica in self.replicas if replica.state == "starting"]
        ready = [replica for replica in self.replicas if replica.state == "ready"]
        if starting:
            replica = starting[-1]
            replica.state, replica.stopped = "stopped", now
        elif len(ready) < 2:
            return
        else:
            replica = min(ready, key=lambda candidate: (candidate.engine.num_unfinished, -candidate.index))
            replica.state = "draining"
        self._log(now, "in", replica, signal)

    def change_states(self) -> None:
        """Take note of changed states."""
        self._ready = [replica for replica in self.replicas if replica.state == "ready"]

    def _num_serving(self) -> int:
        return sum(replica.state in ("starting", "ready") for replica in self.replicas)

    def _log(self, time: float, kind: EventKind, replica: Replica, signal: float) -> None:
        self.events.append(ScaleEvent(time, kind, replica.index, signal, self._num_serving()))

    def _report(self, end: float) -> FleetReport:
        recorders = [replica.engine.recorder for replica in self.replicas]
        num_usable = self.replicas[0].engine.scheduler.kv.pool.num_usable
        rejected = [entry for replica in self.replicas for entry in replica.engine.rejected]
        counts = [replica.num_requests for replica in self.replicas]
        out = [event for event in self.events if event.kind == "out"]
        ready = {event.replica: event.time for event in self.events if event.kind == "ready"}
        waits = [ready[event.replica] - event.time for event in out if event.replica in ready]
        return FleetReport(
            summarise(recorders, num_usable, rejected),
            [replica.report() for replica in self.replicas],
            balance=max(counts) * len(counts) / max(1, sum(counts)),
            replica_seconds=sum(
                (r.stopped if r.stopped is not None else end) - r.started for r in self.replicas
            ),
            events=self.events,
            num_out=len(out),
            num_in=sum(event.kind == "in" for event in self.events),
            thrash=count_thrash(self.events),
            overload_seconds=self.policy.scaler.overload_seconds
            if isinstance(self.policy, Asymmetric)
            else 0.0,
            reaction_seconds=sum(waits) / len(waits) if waits else None,
        )
