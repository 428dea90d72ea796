"""Race of the lab scheduler-fcfs: schedulers on one simulated H100. A cost model times the steps, so all is exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.memory import make_deployment
from engine.sim.report import percentiles
from lessons.course.checking import Learner
from lessons.labs.identity import same_tokens
from lessons.labs.racing import Differences, Race, racer
from lessons.labs.scheduler_fcfs.checks import Ask, Book, Limits, Row, plan_of, service
from lessons.labs.serving import record_in_virtual_time
from prep_common.sandbox import Guest

SIZE = 16


class Arrival(NamedTuple):
    """A request: its time of arrival in seconds, its prompt and output in tokens."""

    time: float
    prompt: int
    output: int


class Times(NamedTuple):
    """Seconds of one run: to the first token and to the last by request, between two tokens, and in all."""

    first: list[float]
    last: list[float]
    gaps: list[float]
    end: float


class ByChunk(Book):
    """vLLM's rule: a request starts if all its tokens would fit, and takes the blocks of each chunk when it comes."""

    def row(self, each: Any, count: int) -> Row:
        if each.computed == 0:
            each.reach = count
        return super().row(each, count)


class PromptsFirst(Book):
    """vLLM 0's default: whole prompts in steps of their own as long as some wait, otherwise decodes."""

    def schedule(self) -> tuple[list[Row], list[str]]:
        rows: list[Row] = []
        preempted: list[str] = []
        self.admit(rows)
        if not rows:
            self.run(rows, preempted)
        return rows, preempted

    def admit(self, rows: list[Row]) -> None:
        for each in [each for each in self.entries if not each.runs]:
            left = self.limits.budget - sum(count for _, _, count in rows)
            if len(self.running()) == self.limits.seqs or (rows and each.known > left):
                return
            if self.blocks_for(each.known) > self.num_free:
                return
            each.runs, each.reach = True, each.known
            rows.append(self.row(each, each.known))


class Static(PromptsFirst):
    """The naive scheduler: a batch starts when the one before has ended, with blocks for its longest outputs."""

    def admit(self, rows: list[Row]) -> None:
        if self.running():
            return
        for each in self.entries:
            need = self.blocks_for(each.end - 1)
            if len(self.running()) == self.limits.seqs or need > self.num_free:
                return
            each.runs, each.reach = True, each.end - 1
            rows.append(self.row(each, each.known))


def serve(scheduler: Any, arrivals: Sequence[Arrival], cost: CostModel) -> tuple[Times, list[str], int]:
    """Serve requests in virtual time. Return the times, a line for each step, and the number of preemptions."""
    ahead = [(each.time, f"r{at}", each) for at, each in enumerate(arrivals)]
    known: dict[str, int] = {}
    end_of = {name: each.prompt + each.output for _, name, each in ahead}
    came = {name: when for when, name, _ in ahead}
    first, last = dict.fromkeys(came, -1.0), dict.fromkeys(came, -1.0)
    gaps: list[float] = []
    told: list[str] = []
    now, num_preempted = 0.0, 0
    while ahead or known:
        if not known:
            now = max(now, ahead[0][0])
        while ahead and ahead[0][0] <= now:
            _, name, each = ahead.pop(0)
            known[name] = each.prompt
            scheduler.add(name, each.prompt, each.output)
        rows, preempted = plan_of(scheduler.schedule())
        if not rows:
            raise RuntimeError("the scheduler chose nothing although requests are unfinished")
        told.append(f"{rows}, preempted {preempted}")
        num_preempted += len(preempted)
        now += cost.seconds(load_of(rows, known))
        sampled = [name for name, start, count in rows if start + count == known[name]]
        for name in sampled:
            if first[name] < 0:
                first[name] = now
            else:
                gaps.append(now - last[name])
            last[name] = now
            known[name] += 1
        ended = [name for name in sampled if known[name] == end_of[name]]
        for name in ended:
            del known[name]
        if isinstance(scheduler, Book):
            scheduler.results(rows)
        else:
            scheduler.update(sampled, ended)
    waits = [first[name] - came[name] for name in came]
    return Times(waits, [last[name] - came[name] for name in came], gaps, now), told, num_preempted


def load_of(rows: Sequence[Row], known: dict[str, int]) -> StepLoad:
    load = StepLoad(num_rows=len(rows))
    for name, start, count in rows:
        end = start + count
        load.num_tokens += count
        load.num_sampled += end == known[name]
        if count == 1:
            load.decode_context += end
        else:
            load.prefill_pairs += pairs_of(start, count, None)
            load.prefill_context += end
    return load


def tracks(seed: int) -> Iterator[tuple[str, Limits, list[Arrival]]]:
    """Yield name, limits and requests: three fixed workloads, and one that the seed draws."""
    yield "chat", Limits(512, 64, 900, SIZE), _load("chat", 150, 40.0, (100, 700), (40, 260))
    yield "long documents", Limits(1024, 16, 2600, SIZE), _load("long", 40, 8.0, (3000, 7000), (30, 120))
    yield "agents", Limits(512, 32, 1600, SIZE), _load("agents", 110, 28.0, (800, 1600), (10, 60))
    rng = Random(seed)
    low = rng.randrange(50, 1500)
    limits = Limits(rng.choice([256, 512, 1024]), 32, 10 * (2 * low + 100) // SIZE, SIZE)
    drawn = _load(f"drawn-{seed}", 60, rng.uniform(12, 30), (low, 3 * low), (10, rng.randint(40, 200)))
    yield f"seed {seed}", limits, drawn


def _load(
    name: str, count: int, rate: float, prompt: tuple[int, int], output: tuple[int, int]
) -> list[Arrival]:
    rng, now, found = Random(f"fcfs-{name}"), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        found.append(Arrival(now, rng.randint(*prompt), rng.randint(*output)))
    return found


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("scheduler-fcfs", "step")
    cost = CostModel(make_deployment(model="llama-3-8b", gpu="h100"))
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, limits, arrivals in tracks(seed):
            schedulers: dict[str, Any] = {
                "yours": Learner(your_guest).new("Scheduler", *limits),
                "ours": Learner(our_guest).new("Scheduler", *limits),
                "vLLM": ByChunk(limits),
                "vLLM 0": PromptsFirst(limits),
                "static": Static(limits),
            }
            means, told = {}, {}
            for name, scheduler in schedulers.items():
                times, told[name], preempted = serve(scheduler, arrivals, cost)
                means[name] = sum(times.last) / len(times.last)
                first, gaps = percentiles(times.first), percentiles(times.gaps)
                assert first is not None and gaps is not None
                shown = [f"{each:,.2f} s" for each in (first.p50, first.p99)]
                shown += [f"{1e3 * gaps.p99:,.0f} ms", f"{means[name]:,.2f} s", f"{times.end:,.1f} s"]
                rows.append((track, name, *shown, str(preempted)))
            ratios.append(means["yours"] / means["ours"])
            differences.look(track, told, guests, partial(_record, limits, arrivals, cost))
        tokens = same_tokens("scheduler-fcfs", your_guest)
    says = f"mean seconds per request, yours over ours, the worst of {len(ratios)} workloads; less is better"
    columns = ("workload", "scheduler", "TTFT p50", "TTFT p99", "ITL p99", "mean", "all done", "preempted")
    return differences.race(columns, rows, max(ratios), says, "mean", tokens=tokens)


def _record(limits: Limits, arrivals: Sequence[Arrival], cost: CostModel, guest: Guest, path: Path) -> None:
    """Serve a workload on the engine's scheduler, which carries out the plans of a file."""
    asks = [Ask(f"r{at}", 0, each.prompt, each.output) for at, each in enumerate(arrivals)]
    scheduler, requests = service(asks, limits, Learner(guest))
    times = (each.time for each in arrivals)
    record_in_virtual_time(scheduler, list(zip(times, requests, strict=True)), cost, path)
