"""Impatient clients of a fleet: they give up, try again, and lose connections when a replica fails.

    user ---- attempt 0 ---- no token within `timeout` ---- give up, back off ---- attempt 1 ---- ... ---- gave up
                  |                                                                   |
                  +-- refused by a full queue (429), or the replica fails ------------+

An engine that does not cancel abandoned attempts computes answers that no client reads. With retries, an overload can
then outlast its cause (a metastable failure, Bronson et al., HotOS 2021).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from engine.sim.fleet import Fleet
from engine.sim.recorder import RequestRecord
from engine.sim.router import Replica
from engine.sim.workload import SimRequest, make_request

MOST_SAMPLES = 60


@dataclass(frozen=True)
class Patience:
    """Patience of clients: their wait for the first token, and their retries."""

    timeout: float = float("inf")  # seconds per attempt
    retries: int = 0
    backoff: float = 1.0  # seconds between two attempts
    cancel: bool = True  # the engine stops an abandoned attempt


@dataclass(eq=False)
class Attempt:
    """One request as the service sees it."""

    user: User
    record: RequestRecord
    replica: Replica


@dataclass(eq=False)
class User:
    """One request as a user sees it: all its attempts."""

    request: SimRequest
    num_attempts: int = 0
    answer: RequestRecord | None = None  # of the attempt that the user waits for, or got
    gave_up: bool = False


@dataclass
class Sample:
    """Levels of a fleet at one moment."""

    time: float
    waiting: int
    running: int
    kv_cache_usage: float  # mean of the ready replicas
    num_ready: int
    itl: float  # mean since the previous sample
    num_sent: int  # attempts since the previous sample


@dataclass
class Service:
    """Drive a fleet by events in order of time: arrivals, deadlines, a failure, samples."""

    fleet: Fleet
    patience: Patience
    max_waiting: int = 0  # waiting requests of a replica that refuses more; 0: never
    users: list[User] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    num_rejected: int = 0
    late: list[RequestRecord] = field(default_factory=list)  # abandoned attempts
    num_attempts: int = 0

    def serve(self, requests: Iterable[SimRequest], seconds: float, down_at: float = -1.0) -> None:
        """Serve all requests, then let the replicas drain. Samples are evenly spaced over `seconds`."""
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order, self._indices = count(), count(1 << 20)
        self._sent_before = 0
        self._gaps: dict[int, int] = {}  # replica -> gaps that the samples have counted
        self._end, self._period = seconds, seconds / (MOST_SAMPLES - 10)
        for request in requests:
            user = User(request)
            self.users.append(user)
            self._at(request.arrival, self._send, user)
        if down_at >= 0:
            self._at(down_at, self._fail)
        self._at(self._period, self._sample)
        while self._events:
            now, _, act = heapq.heappop(self._events)
            if now <= seconds:
                self.fleet.look_until(now)
            act(now)
        for replica in self.fleet.replicas:
            replica.engine.run_until(float("inf"))

    def _at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), lambda now: act(*args, now)))

    def _send(self, user: User, now: float) -> None:
        """Send an attempt. Equal prompts of one user hit the prefix cache."""
        self.num_attempts += 1
        user.num_attempts += 1
        first = user.request
        request = first
        if user.num_attempts > 1:
            request = SimRequest(
                next(self._indices),
                now,
                first.prompt_len,
                first.output_len,
                first.prefix_id,
                first.prefix_len,
            )
        core = make_request(request, first.tokens())
        replica = self.fleet.choose(request, core)
        if replica is None or 0 < self.max_waiting <= len(replica.engine.scheduler.waiting):
            self._lost(user, now)
            return
        record = RequestRecord(request, arrival=now, replica=replica.index)
        replica.submit(core, record, now)
        user.answer = record
        if self.patience.timeout < float("inf"):
            self._at(now + self.patience.timeout, self._deadline, Attempt(user, record, replica))

    def _lost(self, user: User, now: float) -> None:
        """Count a refused or broken attempt; the client tries again if it has tries left."""
        self.num_rejected += 1
        self._again(user, now)

    def _again(self, user: User, now: float) -> None:
        user.answer = None
        if user.num_attempts > self.patience.retries:
            user.gave_up = True
        else:
            self._at(now + self.patience.backoff, self._send, user)

    def _deadline(self, attempt: Attempt, now: float) -> None:
        if attempt.user.answer is not attempt.record:
            return  # its replica failed
        attempt.replica.engine.run_until(now)
        if attempt.record.first_token >= 0:
            return
        self.late.append(attempt.record)
        if self.patience.cancel:
            attempt.replica.engine.abort(attempt.record)
        self._again(attempt.user, now)

    def _fail(self, now: float) -> None:
        """Stop the first ready replica, whose requests are lost, unless it is the last."""
        ready = [replica for replica in self.fleet.replicas if replica.state == "ready"]
        if len(ready) < 2:
            return
        replica = ready[0]
        replica.engine.run_until(now)
        replica.state, replica.stopped = "stopped", now
        self.fleet.change_states()
        mine = {id(record) for record in replica.engine.recorder.live.values()}
        for record in list(replica.engine.recorder.live.values()):
            self.late.append(record)
            replica.engine.abort(record)
        for user in self.users:
            if user.answer is not None and id(user.answer) in mine:
                self._lost(user, now)

    def _sample(self, now: float) -> None:
        alive = [replica for replica in self.fleet.replicas if replica.state in ("ready", "draining")]
        seconds, gaps = 0.0, 0
        for replica in alive:
            replica.engine.run_until(now)
            seen = replica.engine.recorder
            start = self._gaps.get(replica.index, 0)
            self._gaps[replica.index] = len(seen.gaps)
            for gap, how_many in zip(seen.gaps[start:], seen.gap_counts[start:], strict=True):
                seconds, gaps = seconds + gap * how_many, gaps + how_many
        engines = [replica.engine for replica in alive]
        self.samples.append(
            Sample(
                now,
                sum(len(engine.scheduler.waiting) for engine in engines),
                sum(len(engine.scheduler.running) for engine in engines),
                sum(engine.kv_cache_usage for engine in engines) / max(1, len(engines)),
                sum(replica.state == "ready" for replica in alive),
                seconds / gaps if gaps else 0.0,
                self.num_attempts - self._sent_before,
            )
        )
        self._sent_before = self.num_attempts
        is_busy = any(engine.num_unfinished for engine in engines) or bool(self._events)
        if len(self.samples) < MOST_SAMPLES and (now < self._end or is_busy):
            self._at(now + self._period, self._sample)
