"""Six requests in a pool of KV blocks that is too small for all of them.

Only the questions and their arrival are scripted. The size of the pool is found by replaying
the recorded answers through the real scheduler, without a model: the largest pool in which memory
runs short. All events are read from the engine's outputs, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import (
    EngineCoreOutput,
    ModelRunnerOutput,
    NotScheduled,
    SchedulerOutput,
    reason_of,
)
from engine.core.scheduler import Scheduler
from engine.core.stats import StepStats
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams
from prep_common.text import counted

BLOCK_SIZE = 8
STEP_TOKENS = 64
"""Token budget of a step: small, so that a prompt takes several steps together with decodes."""
MAX_TOKENS = 32
MAX_STEPS = 400


@dataclass
class Visitor:
    """One request of the demo."""

    name: str
    arrives: int
    """Step before which it arrives."""
    question: str
    prompt: list[int]
    """Token ids."""


@dataclass(frozen=True)
class Tile:
    """One KV block: its owners, and whether it holds content for a prefix hit."""

    owners: tuple[str, ...]
    is_cached: bool


@dataclass(frozen=True)
class Row:
    """One request after a step."""

    name: str
    status: str
    """waiting, prefill, decode, preempted or done"""
    question: str
    computed: int
    """Tokens whose KV is in the cache."""
    known: int
    """Tokens of prompt and answer so far."""
    hit: int
    """Prompt tokens found in the prefix cache at its first start."""
    text: str
    reason: NotScheduled | None


@dataclass(frozen=True)
class Event:
    """An event at which the demo pauses."""

    kind: str
    """hit, preempt, resume or finish"""
    text: str


@dataclass(frozen=True)
class Frame:
    """Contents of the screen after one step."""

    step: int
    tiles: list[Tile]
    rows: list[Row]
    events: list[Event]
    batch: list[tuple[str, int]]
    """(request, tokens computed) of the step."""
    stats: StepStats


@dataclass
class Totals:
    """Sums over the run, for the figures at the end. Tokens unless the name says otherwise."""

    steps: int = 0
    rows: int = 0
    prompt: int = 0
    hit: int = 0
    preemptions: int = 0
    given_up: int = 0
    """Tokens of KV that preempted requests lost."""
    taken_back: int = 0
    """Those tokens still in the prefix cache when the requests resumed."""
    peak_blocks: int = 0
    answers: dict[str, list[int]] = field(default_factory=dict)


class WatchedScheduler(Scheduler):
    """The scheduler, storing its last plan for observers: EngineArgs(scheduler_cls=...)."""

    last_output: SchedulerOutput

    def schedule(self) -> SchedulerOutput:
        self.last_output = super().schedule()
        return self.last_output


class SmallPool:
    """Runs the visitors on an engine whose scheduler is a `WatchedScheduler`, one frame per step."""

    def __init__(self, core: EngineCore, visitors: list[Visitor], decode: Callable[[list[int]], str]) -> None:
        self.core = core
        self.visitors = visitors
        self.totals = Totals(answers={visitor.name: [] for visitor in visitors})
        self._decode = decode
        self._eos = frozenset(core.config.model.eos_token_ids)
        self._requests: dict[str, Request] = {}
        self._lost: dict[str, int] = {}
        """Preempted request -> KV tokens that it lost, until it resumes."""

    @property
    def num_blocks(self) -> int:
        """Number of usable blocks."""
        return self.core.scheduler.kv.pool.num_usable

    def frames(self) -> Iterator[Frame]:
        """Step until all requests have finished."""
        scheduler = cast(WatchedScheduler, self.core.scheduler)
        for step in range(MAX_STEPS):
            self._let_in(step)
            computed = {name: request.num_computed_tokens for name, request in self._requests.items()}
            outputs = self.core.step()
            out = scheduler.last_output
            events = [*self._preempted(out, computed), *self._started(out), *self._answered(outputs)]
            self._count(out, scheduler.stats)
            yield self._frame(step, out, events)
            if not scheduler.has_unfinished() and len(self._requests) == len(self.visitors):
                return

    def _let_in(self, step: int) -> None:
        for visitor in self.visitors:
            if visitor.arrives == step:
                params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
                request = Request(visitor.name, list(visitor.prompt), params, eos_token_ids=self._eos)
                self._requests[visitor.name] = request
                self.core.add_request(request)

    def _preempted(self, out: SchedulerOutput, computed: dict[str, int]) -> list[Event]:
        events = []
        for name in out.preempted_request_ids:
            self._lost[name] = computed[name]
            self.totals.given_up += computed[name]
            lost = counted(computed[name], "token")
            text = f"{name} is preempted: no block was free, so it loses the KV of {lost}"
            events.append(Event("preempt", text))
        return events

    def _started(self, out: SchedulerOutput) -> list[Event]:
        events = []
        for row in out.scheduled:
            if row.init is None:
                continue
            name, start = row.request_id, row.start
            if name in self._lost:
                lost = self._lost.pop(name)
                self.totals.taken_back += min(start, lost)
                text = f"{name} resumes: {start} of {counted(lost, 'token')} still cached"
                events.append(Event("resume", text))
            elif start:
                events.append(Event("hit", f"{name} starts with a prefix hit of {counted(start, 'token')}"))
        return events

    def _answered(self, outputs: list[EngineCoreOutput]) -> list[Event]:
        for output in outputs:
            self.totals.answers[output.request_id] += output.new_token_ids
        text = "has finished; its blocks are free but keep their content"
        ended = (output.request_id for output in outputs if output.finish_reason is not None)
        return [Event("finish", f"{name} {text}") for name in ended]

    def _count(self, out: SchedulerOutput, stats: StepStats) -> None:
        totals = self.totals
        totals.steps += 1
        totals.rows += len(out.scheduled)
        totals.prompt += stats.prefix_cache_queries
        totals.hit += stats.prefix_cache_hits
        totals.preemptions += stats.num_preempted
        totals.peak_blocks = max(totals.peak_blocks, self.core.scheduler.kv.pool.num_used)

    def _frame(self, step: int, out: SchedulerOutput, events: list[Event]) -> Frame:
        rows = [self._row(visitor, out) for visitor in self.visitors if visitor.name in self._requests]
        batch = [(row.request_id, row.num_tokens) for row in out.scheduled]
        return Frame(step, self._tiles(), rows, events, batch, self.core.scheduler.stats)

    def _row(self, visitor: Visitor, out: SchedulerOutput) -> Row:
        name, request = visitor.name, self._requests[visitor.name]
        waits = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        return Row(
            name=name,
            status=_status(request),
            question=visitor.question,
            computed=request.num_computed_tokens,
            known=request.num_tokens,
            hit=max(0, request.num_cached_tokens),
            text=self._decode(self.totals.answers[name]),
            reason=reason_of(out, name) if waits else None,
        )

    def _tiles(self) -> list[Tile]:
        """Return the pool in the order of block ids, without the null block."""
        owners: dict[int, list[str]] = {}
        for request in self.core.scheduler.running:
            for block in request.blocks:
                owners.setdefault(block.block_id, []).append(request.request_id)
        return [
            Tile(tuple(sorted(owners.get(block.block_id, ()))), block.block_hash is not None)
            for block in self.core.scheduler.kv.pool.blocks[1:]
        ]


def _status(request: Request) -> str:
    if request.status.is_finished:
        return "done"
    if request.status is RequestStatus.PREEMPTED:
        return "preempted"
    if request.status is RequestStatus.WAITING:
        return "waiting"
    return "decode" if request.num_output_tokens else "prefill"


def choose_pool(visitors: list[Visitor], answers: dict[str, list[int]], max_model_len: int) -> int:
    """Return the largest number of blocks, including the null block, with which a request is preempted."""
    config = SchedulerConfig(STEP_TOKENS, len(visitors), max_model_len)
    sizes = [1 + (len(visitor.prompt) + MAX_TOKENS) // BLOCK_SIZE for visitor in visitors]
    least, most = 1 + max(sizes), 1 + sum(sizes)
    short = (size for size in range(most, least, -1) if _preemptions(visitors, answers, config, size))
    return next(short, least)


def _preemptions(
    visitors: list[Visitor], answers: dict[str, list[int]], config: SchedulerConfig, num_blocks: int
) -> int:
    """Return the number of preemptions in a pool of this size, given the answers, without a model."""
    scheduler = Scheduler(config, CacheConfig(num_blocks, BLOCK_SIZE))
    requests: dict[str, Request] = {}
    preemptions = 0
    for step in range(MAX_STEPS):
        for visitor in visitors:
            if visitor.arrives == step:
                params = SamplingParams(temperature=0, max_tokens=len(answers[visitor.name]))
                requests[visitor.name] = Request(visitor.name, list(visitor.prompt), params)
                scheduler.add(requests[visitor.name])
        out = scheduler.schedule()
        scheduler.update(out, _recorded(out, requests, answers))
        preemptions += scheduler.stats.num_preempted
        if not scheduler.has_unfinished() and len(requests) == len(visitors):
            break
    return preemptions


def _recorded(
    out: SchedulerOutput, requests: dict[str, Request], answers: dict[str, list[int]]
) -> ModelRunnerOutput:
    sampled = {}
    for row in out.scheduled:
        request = requests[row.request_id]
        if row.start + row.num_tokens >= request.num_tokens:
            sampled[row.request_id] = [answers[row.request_id][request.num_output_tokens]]
    return ModelRunnerOutput(sampled_token_ids=sampled)
