"""Race of the lab slo-admission: more load than a simulated H100 can serve in time. Virtual time: exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.sim.report import percentiles
from engine.sim.workload import SimRequest
from lessons.course.checking import Learner
from lessons.labs.racing import Differences, Race, all_served, racer
from lessons.labs.slo_admission.checks import SEATS, in_time, service
from prep_common.sandbox import Guest

Span = tuple[int, int]
Track = tuple[str, list[SimRequest], list[float]]


class AdmitAll:
    """No admission control: vLLM's default."""

    def arrive(self, request_id: str, tokens: int, limit: float) -> bool:
        return True

    def step(self, seconds: float, prompt_tokens: int, first: Sequence[str], done: Sequence[str]) -> None:
        pass


class FixedQueue(AdmitAll):
    """At most so many unfinished requests: vLLM's --max-num-queued-reqs."""

    def __init__(self, most: int) -> None:
        self.most, self.unfinished = most, 0

    def arrive(self, request_id: str, tokens: int, limit: float) -> bool:
        is_admitted = self.unfinished < self.most
        self.unfinished += is_admitted
        return is_admitted

    def step(self, seconds: float, prompt_tokens: int, first: Sequence[str], done: Sequence[str]) -> None:
        self.unfinished -= len(done)


def tracks(seed: int) -> Iterator[Track]:
    """Yield name, requests and limits: three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    yield _track("chat", 320, 32, (200, 900), (80, 200), (0.5, 1.0, 2.0))
    yield _track("long documents", 220, 17, (200, 800), (40, 120), (1.0, 2.0, 4.0), long=(4000, 7500))
    yield _track("agents", 320, 24, (1500, 2500), (20, 80), (0.5, 1.5))
    low = rng.randrange(200, 1500)
    rate = 45_000 / (low + 1000) * rng.uniform(0.8, 1.3)
    limits = (rng.uniform(0.2, 1.0), rng.uniform(1.0, 4.0))
    yield _track(f"seed {seed}", 240, rate, (low, 2 * low), (30, rng.randint(60, 200)), limits)


def _track(
    name: str,
    count: int,
    rate: float,
    prompt: Span,
    output: Span,
    limits: Sequence[float],
    long: Span | None = None,
) -> Track:
    """Draw requests, 60 at a lower rate and 60 at a higher one in turn; long: lengths of every fourth prompt."""
    rng, now, requests = Random(f"slo-{name}"), 0.0, []
    for index in range(count):
        now += rng.expovariate(rate * (2.0 if index // 60 % 2 else 0.7))
        lengths = long if long is not None and index % 4 == 3 else prompt
        requests.append(SimRequest(index, now, rng.randint(*lengths), rng.randint(*output)))
    return name, requests, [rng.choice(limits) for _ in requests]


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("slo-admission", "arrival")
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, requests, limits in tracks(seed):
            admissions: dict[str, Any] = {
                "yours": Learner(your_guest).new("SloAdmission", SEATS),
                "ours": Learner(our_guest).new("SloAdmission", SEATS),
                "admit all (vLLM)": AdmitAll(),
                "queue of 8": FixedQueue(SEATS + 8),
                "queue of 32": FixedQueue(SEATS + 32),
            }
            goodput, told = {}, {}
            for name, admission in admissions.items():
                run = service(admission)
                finished = run.serve(requests, limits)
                all_served(name, finished)
                good = in_time(finished, limits)
                goodput[name] = good / requests[-1].arrival
                told[name] = [f"{'admits' if each else 'refuses'} request {at}" for at, each in run.decisions]
                first = percentiles([each.ttft for each in finished])
                assert first is not None
                counts = (len(requests) - len(finished), len(finished) - good, good)
                rows.append((track, name, *map(str, counts), f"{goodput[name]:.1f}/s", f"{first.p99:.2f} s"))
            ratios.append(goodput["yours"] / goodput["ours"])
            differences.look(track, told, guests, partial(_record, requests, limits))
    says = f"requests in time per second of arrivals, yours over ours, worst of {len(ratios)} workloads; more is better"
    columns = ("workload", "admission", "refused", "late", "in time", "goodput", "TTFT p99")
    return differences.race(columns, rows, min(ratios), says, "goodput", more_is_better=True)


def _record(requests: list[SimRequest], limits: list[float], guest: Guest, path: Path) -> None:
    service(Learner(guest).new("SloAdmission", SEATS)).serve(requests, limits, path)
