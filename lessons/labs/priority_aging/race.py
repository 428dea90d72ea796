"""Race of the lab priority-aging: urgent requests keep a simulated H100 busy, others wait. Virtual time: exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.sim.memory import Deployment
from engine.sim.recorder import RequestRecord
from engine.sim.report import percentiles
from engine.sim.workload import SimRequest
from lessons.course.checking import Learner
from lessons.labs.priority_aging.checks import Line, serve
from lessons.labs.racing import Differences, Race, all_served, racer
from lessons.labs.serving import h100
from prep_common.sandbox import Guest

Span = tuple[int, int]
SETTINGS = {"level": 3.0, "token": 0.0005, "longest": 9.0}


class ShortestFirst(Line):
    """The naive queue: the shortest prompt first, without aging. `Line` keeps the requests."""

    def push(self, request_id: str, priority: int, arrival: float, tokens: int) -> float:
        super().push(request_id, priority, arrival, tokens)
        return float(tokens)

    def peek(self) -> str:
        return min(self.waiting, key=lambda name: (self.waiting[name].tokens, self.waiting[name].arrival))


def tracks(seed: int) -> Iterator[tuple[str, list[SimRequest]]]:
    """Yield name and requests: three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    yield "chat", _load("chat", 400, 13, (200, 900), (60, 200), (300, 1200))
    yield "long documents", _load("documents", 260, 10, (200, 600), (60, 160), (4000, 7000))
    yield "agents", _load("agents", 500, 28, (1000, 2000), (20, 60), (1000, 2000))
    low = rng.randrange(200, 2000)
    lengths = (low, 2 * low)
    yield f"seed {seed}", _load(f"seed {seed}", 300, rng.uniform(11, 15), (200, 800), (60, 180), lengths)


def _load(name: str, count: int, rate: float, urgent: Span, output: Span, other: Span) -> list[SimRequest]:
    """Draw requests: 60 % of priority 0 with prompts `urgent`, the rest of 1 and 2 with prompts `other`."""
    rng, now, found = Random(f"aging-{name}"), 0.0, []
    for index in range(count):
        now += rng.expovariate(rate)
        priority = rng.choices([0, 1, 2], [0.6, 0.2, 0.2])[0]
        lengths = other if priority else urgent
        found.append(SimRequest(index, now, rng.randint(*lengths), rng.randint(*output), priority=priority))
    return found


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("priority-aging", "admission")
    slots = h100(12)
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, requests in tracks(seed):
            policies: dict[str, Any] = {
                "yours": Learner(your_guest).new("AgingQueue", **SETTINGS),
                "ours": Learner(our_guest).new("AgingQueue", **SETTINGS),
                "fcfs (vLLM)": "fcfs",
                "priority (vLLM)": "priority",
                "shortest first": ShortestFirst(),
            }
            urgent, longest, told = {}, {}, {}
            for name, policy in policies.items():
                run = serve(policy, requests, slots)
                all_served(name, run)
                first = percentiles(_waits(run, [0]))
                others = percentiles(_waits(run, [1, 2]))
                assert first is not None and others is not None
                urgent[name], longest[name] = first.p99, others.max
                told[name] = [_said(each) for each in run]
                end = max(each.last_token for each in run)
                times = (first.p50, first.p99, others.p50, others.max, end)
                rows.append((track, name, *(f"{each:,.2f} s" for each in times)))
            ratios.append(max(urgent["yours"] / urgent["ours"], longest["yours"] / longest["ours"]))
            differences.look(track, told, guests, partial(_record, requests, slots))
    says = (
        f"the worse of the urgent requests' TTFT p99 and the longest TTFT of the others, yours over ours, the worst of "
        f"{len(ratios)} workloads; less is better"
    )
    columns = ("workload", "queue", "urgent p50", "urgent p99", "others p50", "longest", "all done")
    return differences.race(columns, rows, max(ratios), says, "urgent p99")


def _record(requests: Sequence[SimRequest], slots: Deployment, guest: Guest, path: Path) -> None:
    serve(Learner(guest).new("AgingQueue", **SETTINGS), requests, slots, path=path)


def _waits(run: Sequence[RequestRecord], priorities: Sequence[int]) -> list[float]:
    return [each.ttft for each in run if each.request.priority in priorities]


def _said(record: RequestRecord) -> str:
    return f"request {record.request.index} of priority {record.request.priority}"
