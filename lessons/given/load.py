"""Load on a simulated server: one H100 with Llama-3.1 8B behind an admission control, in virtual time.

    open_loop(AdmissionControl(64, 16), rate=20.0, seconds=30)      requests come whether or not answers do
    closed_loop(clients=32, seconds=30)                             each client waits for its answer, then asks again

Both return one `Record` per request, in order of arrival.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.sim.engine import SimEngine
from engine.sim.memory import make_deployment
from engine.sim.recorder import RequestRecord
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, SimRequest, Workload, make_request

TICK = 0.01
"""Seconds between two looks of the gateway at finished requests."""


class Record(NamedTuple):
    """Moments of one request in seconds. num_tokens is 0 if it got no answer; then first and last are infinite."""

    arrival: float
    first_token: float
    last_token: float
    num_tokens: int


def _engine(max_num_seqs: int) -> SimEngine:
    deployment = make_deployment(
        model="llama-3.1-8b", gpu="h100", max_model_len=4096, max_num_seqs=max_num_seqs
    )
    return make_engine(deployment, enable_prefix_caching=False)


def _requests(count: int, rate: float, seed: int) -> list[SimRequest]:
    """Prompts of 500 to 1,500 tokens, answers of 100 to 300."""
    return list(Workload(count, rate, Lengths(500, 1500), Lengths(100, 300), seed=seed))


class _Gateway:
    """Sends requests to the engine when the admission control says so."""

    def __init__(self, admission: Any, requests: list[SimRequest], timeout: float) -> None:
        self.engine = _engine(512)
        self.admission, self.timeout = admission, timeout
        self.known = {str(request.index): request for request in requests}
        self.waiting: list[SimRequest] = []
        self.done: dict[int, Record] = {}

    def arrive(self, request: SimRequest) -> None:
        verdict = self.admission.offer(str(request.index))
        if verdict == "run":
            self._start(request, request.arrival)
        elif verdict == "wait":
            self.waiting.append(request)

    def look(self, now: float) -> None:
        """Pass on the slots of finished requests; let clients leave that have waited too long for one."""
        for record in self.engine.run_until(now):
            times = (record.arrival, record.first_token, record.last_token, record.num_tokens)
            self.done[record.request.index] = Record(*times)
            following = self.admission.finish(str(record.request.index))
            if following is not None:
                self.waiting.remove(self.known[following])
                self._start(self.known[following], now)
        for request in [each for each in self.waiting if now - each.arrival > self.timeout]:
            self.admission.abort(str(request.index))
            self.waiting.remove(request)

    def _start(self, request: SimRequest, now: float) -> None:
        self.engine.submit(make_request(request), RequestRecord(request, arrival=request.arrival), now)


def open_loop(
    admission: Any, rate: float, seconds: float = 30.0, *, timeout: float = 1e9, seed: int = 1
) -> list[Record]:
    """Serve Poisson arrivals. timeout: seconds after which a client that still waits for a slot leaves."""
    requests = _requests(max(2, round(rate * seconds)), rate, seed)
    gateway, now = _Gateway(admission, requests, timeout), 0.0
    for request in requests:
        while now + TICK < request.arrival:
            gateway.look(now := now + TICK)
        gateway.arrive(request)
    while gateway.engine.num_unfinished or gateway.waiting:
        gateway.look(now := now + TICK)
    never = float("inf")
    return [gateway.done.get(request.index, Record(request.arrival, never, never, 0)) for request in requests]


def closed_loop(
    clients: int, seconds: float = 30.0, *, max_num_seqs: int = 64, seed: int = 1
) -> list[Record]:
    """Serve clients that each have one request at a time and send the next as soon as the answer is complete."""
    engine, now = _engine(max_num_seqs), 0.0
    upcoming = iter(_requests(100_000, 1.0, seed))
    done: list[Record] = []

    def ask(when: float) -> None:
        request = next(upcoming)
        request.arrival = when
        engine.submit(make_request(request), RequestRecord(request, arrival=when), when)

    for _ in range(clients):
        ask(0.0)
    while now < seconds:
        for record in engine.run_until(now := now + TICK):
            done.append(Record(record.arrival, record.first_token, record.last_token, record.num_tokens))
            ask(now)
    return sorted(done)
