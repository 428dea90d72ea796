"""Race of the lab lora-batching: rules of admission by adapter on a simulated H100. Virtual time: exact."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.core.lora_slots import LoRASlots
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.memory import make_deployment
from engine.sim.report import percentiles
from lessons.course.checking import Learner
from lessons.labs.lora_batching.checks import Book, LabSlots, Plan
from lessons.labs.racing import Differences, Race, racer
from lessons.labs.serving import record_in_virtual_time
from prep_common.sandbox import Guest

ADAPTER_BYTES = 2 * 16 * 32 * 81_920
"""Rank 16 on all matrices of llama-3-8b, in 2 bytes: rank x (in + out) summed over a layer is 16 x 81,920."""


class Arrival(NamedTuple):
    time: float
    adapter: str
    prompt: int
    output: int


class Times(NamedTuple):
    first: list[float]
    """Seconds to the first token, by request."""
    end: float
    num_loads: int


class Skipping(Book):
    """vLLM's rule: no slot closes."""

    def choose(self, waiting: Sequence[tuple[str, str]], choice: int) -> int:
        return -1


class InOrder(Skipping):
    """The naive rule: no request is overtaken."""

    def step(
        self, ended: Sequence[str], waiting: Sequence[tuple[str, str]], seats: int, choice: int = -1
    ) -> Plan:
        started: list[tuple[str, int]] = []
        for each in waiting[:seats]:
            found, _ = super().step(ended, [each], 1)
            if not found:
                break
            started, ended = started + found, []
        return started, -1


class Engine:
    """The slots of this engine: the one with the fewest users closes, chosen again in each step."""

    def __init__(self, max_loras: int) -> None:
        self.slots = LoRASlots(max_loras)
        self.running: dict[str, Request] = {}

    def step(self, ended: Sequence[str], waiting: Sequence[tuple[str, str]], seats: int) -> Plan:
        for name in ended:
            self.slots.release(self.running.pop(name))
        self.slots.loads = []
        self.slots.begin_step()
        started: list[tuple[str, int]] = []
        for name, adapter in waiting:
            if len(started) == seats:
                break
            if self.slots.has_room(adapter):
                self.running[name] = Request(name, [0], SamplingParams(), lora_key=adapter)
                self.slots.acquire(self.running[name])
                started.append((name, self.slots.slot_of[adapter]))
        return started, -1


@dataclass
class Row:
    """A running request: tokens known, tokens still to come, and whether its prompt is computed."""

    name: str
    known: int
    left: int
    decodes: bool = False


def serve(slots: Any, seats: int, arrivals: Sequence[Arrival], cost: CostModel) -> tuple[Times, list[str]]:
    """Serve requests in virtual time. Return the times, and a line for each step that looked at the queue."""
    ahead = deque((f"r{number}", each) for number, each in enumerate(arrivals))
    waiting: dict[str, Arrival] = {}
    running: list[Row] = []
    held: dict[int, str] = {}
    ended: list[str] = []
    first: dict[str, float] = {}
    told: list[str] = []
    now, num_loads = 0.0, 0
    while ahead or waiting or running:
        if not waiting and not running:
            now = max(now, ahead[0][1].time)
        while ahead and ahead[0][1].time <= now:
            name, each = ahead.popleft()
            waiting[name] = each
        loads = 0
        if waiting and len(running) < seats:
            queue = [(name, each.adapter) for name, each in waiting.items()]
            started, closed = slots.step(ended, queue, seats - len(running))
            told.append(f"starts {[tuple(pair) for pair in started]}, closes {closed}")
            ended = []
            for name, slot in started:
                each = waiting.pop(name)
                loads += held.get(slot) != each.adapter
                held[slot] = each.adapter
                running.append(Row(name, each.prompt, each.output))
        if not running:
            raise RuntimeError("no request starts although none runs")
        now += cost.seconds(_load_of(running)) + cost.copying(loads * ADAPTER_BYTES)
        num_loads += loads
        for row in running:
            first.setdefault(row.name, now)
            row.known, row.left, row.decodes = row.known + 1, row.left - 1, True
        ended += [row.name for row in running if not row.left]
        running = [row for row in running if row.left]
    waits = [first[f"r{number}"] - each.time for number, each in enumerate(arrivals)]
    return Times(waits, now, num_loads), told


def _load_of(running: Sequence[Row]) -> StepLoad:
    load = StepLoad(num_rows=len(running), num_sampled=len(running))
    for row in running:
        load.num_tokens += 1 if row.decodes else row.known
        if row.decodes:
            load.decode_context += row.known
        else:
            load.prefill_pairs += pairs_of(0, row.known, None)
            load.prefill_context += row.known
    return load


def tracks(seed: int) -> Iterator[tuple[str, int, int, list[Arrival]]]:
    """Yield name, slots, seats and requests: three fixed workloads, and one that the seed draws."""
    yield "chat", 2, 24, _arrivals("chat", 260, 14.0, [48, 48, 1, 1, 1, 1], (50, 400), (40, 200))
    documents = _falling(5, 2.0)
    yield "long documents", 2, 8, _arrivals("long", 90, 6.0, documents, (1500, 4000), (20, 120))
    yield "agents", 3, 32, _arrivals("agents", 300, 35.0, _falling(24, 1.8), (200, 600), (15, 60))
    rng = Random(seed)
    shares = _falling(rng.randint(6, 20), rng.uniform(1.2, 2.2))
    prompt, output = (50, rng.randint(200, 1500)), (20, rng.randint(60, 200))
    drawn = _arrivals(f"drawn-{seed}", 150, rng.uniform(10, 20), shares, prompt, output)
    yield f"seed {seed}", rng.randint(2, 4), 24, drawn


def _falling(count: int, power: float) -> list[float]:
    """Return how popular each adapter is, the first the most (Zipf's law)."""
    return [1 / (1 + place) ** power for place in range(count)]


def _arrivals(
    name: str,
    count: int,
    rate: float,
    shares: Sequence[float],
    prompt: tuple[int, int],
    output: tuple[int, int],
) -> list[Arrival]:
    rng, now, found = Random(f"lora-{name}"), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        [place] = rng.choices(range(len(shares)), shares)
        found.append(Arrival(now, f"adapter-{place}", rng.randint(*prompt), rng.randint(*output)))
    return found


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("lora-batching", "choice")
    cost = CostModel(make_deployment(model="llama-3-8b", gpu="h100"))
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, max_loras, seats, arrivals in tracks(seed):
            rules: dict[str, Any] = {
                "yours": Learner(your_guest).new("AdapterSlots", max_loras),
                "ours": Learner(our_guest).new("AdapterSlots", max_loras),
                "this engine": Engine(max_loras),
                "skip (vLLM)": Skipping(max_loras),
                "in order": InOrder(max_loras),
            }
            worst, told = {}, {}
            popular = {f"adapter-{place}" for place in range(max_loras)}
            for name, rule in rules.items():
                times, told[name] = serve(rule, seats, arrivals, cost)
                every = percentiles(times.first)
                pairs = zip(times.first, arrivals, strict=True)
                rare = percentiles([wait for wait, each in pairs if each.adapter not in popular])
                assert every is not None and rare is not None
                worst[name] = every.p99
                shown = [f"{each:,.2f} s" for each in (every.p50, every.p99, rare.p50)]
                rows.append((track, name, *shown, str(times.num_loads), f"{times.end:,.1f} s"))
            ratios.append(worst["yours"] / worst["ours"])
            differences.look(track, told, guests, partial(_record, max_loras, seats, arrivals, cost))
    says = f"TTFT p99, yours over ours, the worst of {len(ratios)} workloads; less is better"
    columns = ("workload", "rule", "TTFT p50", "TTFT p99", "rare p50", "loads", "all done")
    return differences.race(columns, rows, max(ratios), says, "TTFT p99")


def _record(
    max_loras: int, seats: int, arrivals: Sequence[Arrival], cost: CostModel, guest: Guest, path: Path
) -> None:
    """Serve a workload on the engine's scheduler, which admits as a file chooses."""
    config = SchedulerConfig(1 << 20, seats, 1 << 16, max_loras=max_loras)
    slots = LabSlots(Learner(guest).new("AdapterSlots", max_loras), config)
    scheduler = Scheduler(config, CacheConfig(1 << 15, 16, False), make_resources=lambda *_: [slots])
    requests = []
    for at, each in enumerate(arrivals):
        params = SamplingParams(temperature=0, max_tokens=each.output, ignore_eos=True)
        requests.append((each.time, Request(f"r{at}", [5] * each.prompt, params, lora_key=each.adapter)))
    record_in_virtual_time(scheduler, requests, cost, path)
