"""Race of the lab chunked-prefill: one simulated A100, a target of 30 ms between tokens. Virtual time: exact."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.sim.report import percentiles
from engine.sim.workload import SimRequest
from lessons.course.checking import Learner
from lessons.labs.chunked_prefill.checks import TARGET, serve
from lessons.labs.racing import Differences, Race, all_served, racer
from prep_common.sandbox import Guest

Span = tuple[int, int]


class Constant:
    """A budget that never changes: `max_num_batched_tokens`."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def budget(self, decodes: int) -> int:
        return self.tokens

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        pass


def tracks(seed: int) -> Iterator[tuple[str, list[SimRequest]]]:
    """Yield name and requests: three fixed workloads, and one that the seed draws."""
    rng = Random(seed)
    yield "chat", _load("chat", 160, 14, (200, 900), (80, 200))
    yield "long documents", _load("documents", 100, 4, (200, 800), (60, 200), long=(4000, 7500))
    yield "agents", _load("agents", 100, 4.5, (1500, 2500), (40, 120))
    low = rng.randrange(200, 1500)
    rate = 6500 / low * rng.uniform(0.5, 0.8)
    yield f"seed {seed}", _load(f"seed {seed}", 100, rate, (low, 2 * low), (40, rng.randint(60, 200)))


def _load(
    name: str, count: int, rate: float, prompt: Span, output: Span, long: Span | None = None
) -> list[SimRequest]:
    """Draw requests; long: lengths of every fourth prompt."""
    rng, now, found = Random(f"chunks-{name}"), 0.0, []
    for index in range(count):
        now += rng.expovariate(rate)
        lengths = long if long is not None and index % 4 == 3 else prompt
        found.append(SimRequest(index, now, rng.randint(*lengths), rng.randint(*output)))
    return found


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("chunked-prefill", "step")
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, requests in tracks(seed):
            controllers: dict[str, Any] = {
                "yours": Learner(your_guest).new("ChunkController", TARGET),
                "ours": Learner(our_guest).new("ChunkController", TARGET),
                "2,048 (vLLM)": Constant(2048),
                "512": Constant(512),
            }
            ttft, itl, told = {}, {}, {}
            for name, controller in controllers.items():
                run = serve(controller, requests)
                recorder = run.engine.recorder
                all_served(name, recorder.finished)
                first = percentiles([each.ttft for each in recorder.finished])
                gaps = percentiles(recorder.gaps, recorder.gap_counts)
                assert first is not None and gaps is not None
                ttft[name], itl[name] = first.p99, gaps.p99
                told[name] = [f"{budget} tokens beside {decodes} decodes" for decodes, budget in run.budgets]
                pairs = zip(recorder.gaps, recorder.gap_counts, strict=True)
                late = sum(count for gap, count in pairs if gap > TARGET) / gaps.count
                times = (f"{1e3 * each:,.0f} ms" for each in (gaps.p99, gaps.max))
                starts = (f"{1e3 * each:,.0f} ms" for each in (first.p50, first.p99))
                rows.append((track, name, *times, f"{late:.1%}", *starts))
            ratios.append(max(ttft["yours"] / ttft["ours"], itl["yours"] / itl["ours"]))
            differences.look(track, told, guests, partial(_record, requests))
    says = f"the worse of TTFT p99 and ITL p99, yours over ours, the worst of {len(ratios)} workloads; less is better"
    columns = ("workload", "budget", "ITL p99", "longest", "over 30 ms", "TTFT p50", "TTFT p99")
    return differences.race(columns, rows, max(ratios), says, "ITL p99")


def _record(requests: list[SimRequest], guest: Guest, path: Path) -> None:
    serve(Learner(guest).new("ChunkController", TARGET), requests, path)
