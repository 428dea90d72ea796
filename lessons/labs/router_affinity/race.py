"""Race of the lab router-affinity: four replicas in virtual time, so a result is the same on every machine.

The scheduler, the KV cache and the router run for real; the cost model gives each step its duration (engine/sim).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.core.request import Request
from engine.sim.report import Percentiles
from engine.sim.router import ConsistentHash, LeastLoaded, Replica, RoundRobin
from engine.sim.workload import Lengths, SimRequest, Workload
from lessons.course.checking import Learner
from lessons.labs.racing import Differences, Race, all_generated, racer
from lessons.labs.router_affinity.checks import LabRouter, fleet
from prep_common.sandbox import Guest

REPLICAS = 4


class Racing(LabRouter):
    """A contestant's router; a choice outside the fleet ends the race."""

    def __init__(self, learner: Any) -> None:
        super().__init__(learner)
        self.told: list[str] = []

    def choose(self, request: SimRequest, core: Request, ready: Sequence[Replica]) -> Replica:
        chosen = super().choose(request, core, ready)
        [(seen, _)] = self.decisions
        self.decisions.clear()
        state = next(each for each in seen if each.index == chosen.index)
        self.told.append(f"replica {state.index} (load {state.load}, {state.hit} blocks cached)")
        return chosen


class DataParallel:
    """vLLM's balancer of data-parallel engines (v1/engine/core_client.py), with counts that are always fresh."""

    needs_state = True

    def __init__(self) -> None:
        self.first = 0
        """Place from which equal scores are compared: it moves on with each request."""

    def choose(self, request: SimRequest, core: Request, ready: Sequence[Replica]) -> Replica:
        def score(replica: Replica) -> float:
            waiting = len(replica.engine.scheduler.waiting)
            return replica.load + 6.0 * waiting * max(0.0, replica.engine.kv_cache_usage - 0.5)

        start = self.first % len(ready)
        self.first += 1
        return min((*ready[start:], *ready[:start]), key=score)


def tracks(seed: int) -> Iterator[tuple[str, list[SimRequest]]]:
    """Yield the workloads: three fixed ones, and one that the seed draws."""
    rng = Random(seed)
    drawn: dict[str, Any] = {"num_prefixes": rng.randint(4, 30), "prefix_len": rng.randrange(256, 2048, 16)}
    yield "chat", list(_load(240, 60, (1100, 1600), (40, 160), num_prefixes=16, prefix_len=1024))
    yield "long documents", list(_load(120, 12, (5000, 7000), (20, 60), num_prefixes=12, prefix_len=4800))
    yield "agents", list(_load(240, 40, (2200, 2600), (10, 60), num_prefixes=5, prefix_len=2048))
    yield (
        f"drawn by seed {seed}",
        list(_load(200, rng.randint(20, 60), (2100, 2600), (20, 120), seed, **drawn)),
    )


def _load(
    count: int, rate: float, prompt: tuple[int, int], output: tuple[int, int], seed: int = 0, **prefixes: Any
) -> Workload:
    return Workload(count, rate, Lengths(*prompt), Lengths(*output), arrivals="gamma", seed=seed, **prefixes)


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("router-affinity", "request")
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, requests in tracks(seed):
            entries: dict[str, Any] = {
                "yours": Racing(Learner(your_guest)),
                "ours": Racing(Learner(our_guest)),
                "vLLM": DataParallel(),
                "round-robin": RoundRobin(),
                "least-loaded": LeastLoaded(),
                "consistent hash": ConsistentHash(),
            }
            times = {}
            for name, router in entries.items():
                report = fleet(router, requests, REPLICAS, num_blocks=2400)
                all_generated(name, report.run, requests)
                ttft: Percentiles = report.run.ttft
                times[name] = ttft.p99
                rows.append(
                    (
                        track,
                        name,
                        f"{1e3 * ttft.p50:,.0f} ms",
                        f"{1e3 * ttft.p99:,.0f} ms",
                        f"{report.run.prefix_cache_hit_rate:.0%}",
                        f"{report.balance:.2f}",
                    )
                )
            ratios.append(times["yours"] / times["ours"])
            told = {name: entries[name].told for name in ("yours", "ours")}
            differences.look(track, told, guests, partial(_record, requests, _first_replica(told)))
    says = f"your TTFT p99 over ours, the worst of {len(ratios)} workloads; less is better, 1 is equal"
    columns = ("workload", "router", "TTFT p50", "TTFT p99", "hits", "balance")
    return differences.race(columns, rows, max(ratios), says, "TTFT p99")


def _first_replica(told: Mapping[str, Sequence[str]]) -> int:
    """Return the replica that yours chose for the first request that ours sent elsewhere."""
    pairs = zip(told["yours"], told["ours"], strict=True)
    return next((int(mine.split()[1]) for mine, right in pairs if mine != right), 0)


def _record(requests: list[SimRequest], shown: int, guest: Guest, path: Path) -> None:
    fleet(Racing(Learner(guest)), requests, REPLICAS, num_blocks=2400, path=path, shown=shown)
