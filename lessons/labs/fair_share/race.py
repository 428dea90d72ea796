"""Race of the lab fair-share: one tenant floods a simulated H100, two others send little. Virtual time: exact."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.sim.memory import Deployment
from engine.sim.recorder import RequestRecord
from engine.sim.report import percentiles
from engine.sim.workload import SimRequest
from lessons.course.checking import Learner
from lessons.labs.fair_share.checks import serve
from lessons.labs.racing import Differences, Race, all_served, racer
from lessons.labs.serving import h100
from prep_common.sandbox import Guest

FLOOD = "flood"
Track = tuple[str, list[SimRequest], list[str]]


class TurnsByRequest:
    """The naive policy: tenants take turns by requests, however long these are."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def arrive(self, request_id: str, tenant: str, tokens: int) -> float:
        self.counts[tenant] = self.counts.get(tenant, 0) + 1
        return float(self.counts[tenant])

    def finish(self, request_id: str) -> None:
        pass


def tracks(seed: int) -> Iterator[Track]:
    """Yield name, requests and tenants: three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    yield _track("chat", 160, (200, 800), (100, 300), quiet=16)
    yield _track("long documents", 80, (3000, 6000), (30, 90), quiet=200, short=(50, 200))
    yield _track("agents", 120, (1200, 2000), (20, 60), quiet=12)
    low = rng.randrange(100, 3000)
    yield _track(f"seed {seed}", 120, (low, 2 * low), (20, rng.randint(40, 250)), quiet=rng.randint(10, 90))


def _track(
    name: str,
    count: int,
    prompt: tuple[int, int],
    output: tuple[int, int],
    quiet: int,
    short: tuple[int, int] | None = None,
) -> Track:
    """The flood sends `count` requests within a second, two quiet tenants `quiet` over ten; short: their prompts."""
    rng = Random(f"fair-{name}")
    arrivals = [(rng.random(), FLOOD) for _ in range(count)]
    arrivals += [(10 * rng.random(), f"quiet-{number % 2}") for number in range(quiet)]
    arrivals.sort()
    requests = []
    for index, (when, tenant) in enumerate(arrivals):
        lengths = prompt if tenant == FLOOD or short is None else short
        requests.append(SimRequest(index, when, rng.randint(*lengths), rng.randint(*output)))
    return name, requests, [tenant for _, tenant in arrivals]


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("fair-share", "admission")
    slots = h100(16)
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, requests, tenants in tracks(seed):
            policies: dict[str, Any] = {
                "yours": Learner(your_guest).new("FairShare"),
                "ours": Learner(our_guest).new("FairShare"),
                "fcfs (vLLM)": None,
                "by request": TurnsByRequest(),
            }
            runs = {name: serve(policy, requests, tenants, slots) for name, policy in policies.items()}
            for name, run in runs.items():
                all_served(name, run)
            worst = {}
            for name, run in runs.items():
                quiet = percentiles([each.ttft for each in run if tenants[each.request.index] != FLOOD])
                flood = percentiles([each.ttft for each in run if tenants[each.request.index] == FLOOD])
                assert quiet is not None and flood is not None
                worst[name] = quiet.p99
                end = max(each.last_token for each in run)
                rows.append(
                    (track, name, *(f"{each:,.2f} s" for each in (quiet.p50, quiet.p99, flood.p99, end)))
                )
            ratios.append(worst["yours"] / worst["ours"])
            told = [[_said(each, tenants) for each in runs[name]] for name in ("yours", "ours")]
            record = partial(_record, requests, tenants, slots)
            differences.look(track, dict(zip(("yours", "ours"), told, strict=True)), guests, record)
    says = f"TTFT p99 of the quiet tenants, yours over ours, the worst of {len(ratios)} workloads; less is better"
    columns = ("workload", "policy", "quiet p50", "quiet p99", "flood p99", "all done")
    return differences.race(columns, rows, max(ratios), says, "quiet p99")


def _record(
    requests: list[SimRequest], tenants: list[str], slots: Deployment, guest: Guest, path: Path
) -> None:
    serve(Learner(guest).new("FairShare"), requests, tenants, slots, path)


def _said(record: RequestRecord, tenants: list[str]) -> str:
    return f"request {record.request.index} of {tenants[record.request.index]}"
