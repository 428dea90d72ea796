"""Compare schedulers on three workloads in virtual time: the learner's, ours, and two policies of vLLM.

The scheduler and its memory run for real; the cost model gives each step a duration (`engine/sim`). So a result is
exact and the same on every machine, and Python's speed does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from engine.config import CacheConfig, SchedulerConfig
from engine.core.hashing import BlockHasher
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.request import Request
from engine.core.router import PrefixRouter
from engine.core.scheduler import Scheduler, StepPlan
from engine.sim.cost import CostModel
from engine.sim.engine import SimEngine
from engine.sim.fleet import Fleet
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment, plan_memory
from engine.sim.models import get_model
from engine.sim.recorder import Recorder
from engine.sim.report import percentiles, summarise
from engine.sim.router import LeastLoaded, Replica
from engine.sim.run import scheduler_config
from engine.sim.workload import Lengths, SimRequest, Workload
from lessons.mine.errors import PieceError, ask
from lessons.mine.pieces import Pieces
from lessons.mine.scheduler import MineScheduler

MODEL, GPU = "llama-3-8b", "h100"
TTFT_SLO, TPOT_SLO = 1.0, 0.05
"""Seconds. Goodput counts the requests that meet both."""
MAX_IMBALANCE = 1.25


class RacingRequest(SimRequest):
    """A simulated request whose output tokens are valid token ids, as learners' hashes expect."""

    @property
    def answer_token(self) -> int:
        return (1 << 62) + self.index


@dataclass(frozen=True)
class Track:
    """A workload and the replica that serves it."""

    name: str
    says: str
    workloads: tuple[Workload, ...]
    num_blocks: int = 0
    """KV blocks; 0: as many as fit."""
    budget: int = 2048
    replicas: int = 1

    def requests(self) -> list[SimRequest]:
        """Return all requests in order of arrival, numbered."""
        drawn = sorted((r for workload in self.workloads for r in workload), key=lambda r: r.arrival)
        return [
            RacingRequest(index, r.arrival, r.prompt_len, r.output_len, r.prefix_id, r.prefix_len)
            for index, r in enumerate(drawn)
        ]


def tracks(scale: float = 1.0) -> list[Track]:
    """Return the workloads; scale multiplies the number of requests."""

    def count(number: int) -> int:
        return max(4, round(number * scale))

    prefixes: dict[str, Any] = {"num_prefixes": 6, "prefix_len": 1024}
    chat = Workload(count(160), 24, Lengths(1100, 1600), Lengths(40, 160), **prefixes)
    short = Workload(count(120), 10, Lengths(60, 200), Lengths(100, 200))
    long = Workload(count(30), 2.5, Lengths(5000, 7000), Lengths(20, 40), seed=1)
    crowd = Workload(count(90), 12, Lengths(800, 2400), Lengths(100, 400))
    return [
        Track("chat", "6 system prompts of 1,024 tokens", (chat,), num_blocks=1400),
        Track("long prompts", "prompts of 6,000 tokens among decoding requests", (short, long), budget=512),
        Track("overload", "12 requests/s and 1,200 KV blocks", (crowd,), num_blocks=1200, budget=512),
        Track(
            "two replicas", "the chat workload behind a router", (replace(chat, rate=40),), 1000, replicas=2
        ),
    ]


# -- contestants


class VllmKV(KVManager):
    """vLLM 0.32's rule for memory: the whole prompt must fit at admission, but blocks are taken chunk by chunk."""

    chunk_end = 0

    def admit(self, request: Request, hit: PrefixHit, num_tokens: int) -> list[int] | None:
        if not self.has_room_to_start(request, hit, num_tokens):
            return None
        return super().admit(request, hit, min(num_tokens, self.chunk_end))


class VllmScheduler(Scheduler):
    """Our scheduler with vLLM's rule for memory: a prompt can be preempted between two chunks."""

    kv: VllmKV
    kv_class = VllmKV

    def _num_new_tokens(self, request: Request, start: int, plan: StepPlan) -> int:
        num_tokens = super()._num_new_tokens(request, start, plan)
        self.kv.chunk_end = start + num_tokens
        return num_tokens


MakeScheduler = Callable[..., Scheduler]


@dataclass(frozen=True)
class Contestant:
    """A scheduler, and for several replicas a router."""

    name: str
    make: MakeScheduler
    is_chunked: bool = True
    make_router: Callable[[int], Any] = lambda block_size: LeastLoaded()


def contestants(pieces: Pieces) -> list[Contestant]:
    """Return the learner's engine, ours, and vLLM's rules with and without chunks; vLLM's router looks at loads."""
    whole = pieces.has("scheduler") and pieces["scheduler"].exercise == "09.2"
    router = partial(MineRouter, pieces) if pieces.has("router") else OurRouter
    return [
        Contestant(
            "yours" if pieces.yours else "solutions", partial(MineScheduler, pieces=pieces), not whole, router
        ),
        Contestant("ours", Scheduler, make_router=OurRouter),
        Contestant("vLLM chunked", VllmScheduler),
        Contestant("vLLM whole prompts", VllmScheduler, is_chunked=False),
    ]


class OurRouter:
    """The engine's prefix router in a simulated fleet."""

    needs_state = True

    def __init__(self, block_size: int) -> None:
        self._hasher = BlockHasher(block_size)
        self._router = PrefixRouter(2, max_imbalance=MAX_IMBALANCE)

    def choose(self, request: SimRequest, core: Request, ready: Sequence[Replica]) -> Replica:
        self._router.loads = [replica.engine.num_unfinished for replica in ready]
        return ready[self._router.route(self.hashes(core))]

    def hashes(self, core: Request) -> list[bytes]:
        """Return the hashes of the prompt's blocks. The request itself stays as it is: its engine hashes it."""
        copy = Request(core.request_id, core.prompt_token_ids, core.sampling_params)
        self._hasher.extend(copy)
        return copy.block_hashes


class MineRouter(OurRouter):
    """The learner's `route` with a table of the blocks that each replica was sent."""

    def __init__(self, pieces: Pieces, block_size: int) -> None:
        super().__init__(block_size)
        self._piece = pieces["router"]
        self._holders: dict[bytes, set[int]] = {}

    def choose(self, request: SimRequest, core: Request, ready: Sequence[Replica]) -> Replica:
        hashes, loads = self.hashes(core), [replica.engine.num_unfinished for replica in ready]
        holders = {each: self._holders[each] for each in hashes if each in self._holders}
        where = f"request {request.index}"
        chosen = ask(self._piece.says, where, self._piece.item, hashes, loads, holders, MAX_IMBALANCE)
        if type(chosen) is not int or not 0 <= chosen < len(ready):
            raise PieceError(
                self._piece.says, "the choice is a replica", f"{chosen!r} of {len(ready)} ({where})"
            )
        for each in hashes:
            self._holders.setdefault(each, set()).add(chosen)
        return ready[chosen]


# -- the race


@dataclass(frozen=True)
class Result:
    """Figures of one contestant on one track, in virtual seconds."""

    track: str
    contestant: str
    ttft_p50: float
    ttft_p99: float
    itl_p99: float
    preemptions: int
    hit_rate: float
    goodput: float
    """Requests per second that meet TTFT_SLO and TPOT_SLO."""
    steps: int


class RacingEngine(SimEngine):
    """A simulated replica with any scheduler."""

    def __init__(self, make: MakeScheduler, scheduler: SchedulerConfig, cache: CacheConfig, cost: CostModel):
        super().__init__(scheduler, cache, cost, fast_forward=False)
        self.scheduler = make(scheduler, cache, clock=self.clock)  # type: ignore[assignment]


def race(
    pieces: Pieces, *, scale: float = 1.0, tell: Callable[[str, int], object] = lambda name, done: None
) -> list[Result]:
    """Run every contestant on every track. tell(name, number of finished runs) reports progress."""
    runs = [(track, each) for track in tracks(scale) for each in contestants(pieces)]
    results = []
    for number, (track, contestant) in enumerate(runs):
        tell(f"{track.name}: {contestant.name}", number)
        results.append(run(track, contestant))
    return results


def run(track: Track, contestant: Contestant) -> Result:
    """Serve a track's requests with one contestant."""
    deployment = Deployment(get_model(MODEL), get_hardware(GPU), max_num_batched_tokens=track.budget)
    config = scheduler_config(deployment)
    if not contestant.is_chunked:
        budget = max(track.budget, config.max_model_len)
        config = replace(config, enable_chunked_prefill=False, max_num_batched_tokens=budget)
    cache = CacheConfig(track.num_blocks or plan_memory(deployment).num_blocks, deployment.block_size)
    make_engine = partial(RacingEngine, contestant.make, config, cache, CostModel(deployment))
    if track.replicas == 1:
        engine = make_engine()
        engine.run(track.requests())
        return _result(track, contestant, [engine.recorder])
    fleet = Fleet(make_engine, track.replicas, contestant.make_router(deployment.block_size))
    fleet.run(track.requests())
    return _result(track, contestant, [replica.engine.recorder for replica in fleet.replicas])


def _result(track: Track, contestant: Contestant, recorders: list[Recorder]) -> Result:
    report = summarise(recorders, 1, [])
    done = [record for recorder in recorders for record in recorder.finished]
    good = sum(record.ttft <= TTFT_SLO and record.tpot <= TPOT_SLO for record in done)
    ttft, itl = percentiles([record.ttft for record in done]), report.itl
    assert ttft is not None and itl is not None  # every track finishes requests of several tokens
    return Result(
        track.name,
        contestant.name,
        ttft.p50,
        ttft.p99,
        itl.p99,
        report.num_preemptions,
        report.prefix_cache_hit_rate,
        good / report.seconds,
        report.num_steps,
    )


def plot(results: Sequence[Result]) -> Any:
    """Return a matplotlib figure: goodput and P99 ITL of every contestant on every track."""
    from matplotlib.figure import Figure

    from lessons.course.plots import COLOURS, CYCLE, style

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    names = list(dict.fromkeys(result.contestant for result in results))
    groups = list(dict.fromkeys(result.track for result in results))
    measures = (("goodput", "requests/s that meet the SLO", 1.0), ("itl_p99", "P99 ITL (ms)", 1e3))
    for place, (field, label, factor) in enumerate(measures, 1):
        axes = figure.add_subplot(1, 2, place)
        style(axes)
        for index, name in enumerate(names):
            values = [factor * getattr(r, field) for r in results if r.contestant == name]
            positions = [group + (index - (len(names) - 1) / 2) * 0.2 for group in range(len(groups))]
            hatch = ("", "//", "..", "xx")[index % 4]
            axes.bar(
                positions, values, 0.18, label=name, color=COLOURS[CYCLE[index]], hatch=hatch, alpha=0.85
            )
        axes.set_xticks(range(len(groups)), [group.replace(" ", "\n") for group in groups])
        axes.set_ylabel(label)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8
    )
    return figure
