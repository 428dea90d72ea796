"""Checks of the lab scheduler-fcfs: rules, random workloads, the engine's scheduler on the learner's plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.core.kv_manager import PrefixHit
from engine.core.passed_over import PassedOver
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler, StepPlan
from engine.core.stats import StepStats
from engine.sampling_params import SamplingParams
from lessons.course.checking import Failed, Learner, check, refused, run_fewest
from lessons.labs.serving import Service, decide_the_same

LAB = "scheduler-fcfs"
Row = tuple[str, int, int]
MAX_STEPS = 300


class Limits(NamedTuple):
    """Arguments of the scheduler, by position."""

    budget: int
    seqs: int
    blocks: int
    size: int


class Ask(NamedTuple):
    """A request: the step before which it arrives, tokens of prompt and output, the step that aborts it or -1."""

    name: str
    step: int
    prompt: int
    output: int
    abort: int = -1


@dataclass
class Entry:
    """A request of the second opinion. It owns blocks for `reach` tokens."""

    name: str
    known: int
    end: int
    """Tokens at which it has finished."""
    computed: int = 0
    reach: int = 0
    runs: bool = False


class Book:
    """A second opinion: one list in order of arrival, no queue and no counter of free blocks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.entries: list[Entry] = []

    @property
    def num_free(self) -> int:
        return self.limits.blocks - sum(self.blocks_for(each.reach) for each in self.entries)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.limits.size)

    def running(self) -> list[Entry]:
        return [each for each in self.entries if each.runs]

    def add(self, name: str, num_tokens: int, max_tokens: int) -> None:
        self.entries.append(Entry(name, num_tokens, num_tokens + max_tokens))

    def schedule(self) -> tuple[list[Row], list[str]]:
        rows: list[Row] = []
        preempted: list[str] = []
        self.run(rows, preempted)
        if not preempted:
            self.admit(rows)
        return rows, preempted

    def run(self, rows: list[Row], preempted: list[str]) -> None:
        """Give rows to running requests, in order of arrival."""
        for each in self.running():
            left = self.limits.budget - sum(count for _, _, count in rows)
            if not each.runs or not left:
                continue
            count = min(each.known - each.computed, left)
            before, each.reach = each.reach, max(each.reach, each.computed + count)
            while each.runs and self.num_free < 0:
                victim = self.running()[-1]
                if victim is each:
                    each.reach = before
                victim.runs, victim.reach, victim.computed = False, 0, 0
                preempted.append(victim.name)
            if each.runs:
                rows.append(self.row(each, count))

    def admit(self, rows: list[Row]) -> None:
        """Start waiting requests, in order of arrival."""
        for each in [each for each in self.entries if not each.runs]:
            left = self.limits.budget - sum(count for _, _, count in rows)
            if not left or len(self.running()) == self.limits.seqs:
                return
            if self.blocks_for(each.known) > self.num_free:
                return
            each.runs, each.reach = True, each.known
            rows.append(self.row(each, min(left, each.known)))

    def row(self, each: Entry, count: int) -> Row:
        each.computed += count
        return each.name, each.computed - count, count

    def results(self, rows: Sequence[Row]) -> tuple[list[str], list[str]]:
        """Apply a step: return the requests that have one token more, and those that end with it."""
        named = {name for name, _, _ in rows}
        complete = [each for each in self.entries if each.name in named and each.computed == each.known]
        for each in complete:
            each.known += 1
        ended = [each.name for each in complete if each.known == each.end]
        self.leave(ended)
        return [each.name for each in complete], ended

    def leave(self, names: Sequence[str]) -> None:
        self.entries = [each for each in self.entries if each.name not in names]


def plan_of(answer: Any) -> tuple[list[Row], list[str]]:
    """Return the learner's plan as plain tuples."""
    try:
        rows, preempted = answer
        return [(name, start, count) for name, start, count in rows], list(preempted)
    except (TypeError, ValueError):
        raise Failed(f"schedule returned {answer!r}; expected (rows, preempted)") from None


def compare(learner: Learner, asks: Sequence[Ask], limits: Limits) -> None:
    """Serve requests on the learner's scheduler and in the book; raise Failed at the first difference."""
    book, yours = Book(limits), learner.new("Scheduler", *limits)
    example = _all_shown(limits, asks)
    step = 0
    while (book.entries or any(each.step >= step for each in asks)) and step < MAX_STEPS:
        for each in asks:
            if each.step == step:
                yours.add(each.name, each.prompt, each.output)
                book.add(each.name, each.prompt, each.output)
        rows, preempted = book.schedule()
        found = plan_of(yours.schedule())
        if found != (rows, preempted):
            raise Failed(_difference(step, found, (rows, preempted)), example=example)
        sampled, ended = book.results(rows)
        aborted = [each.name for each in asks if each.abort == step]
        book.leave(aborted)
        yours.update(sampled, ended + aborted)
        if (free := yours.get("num_free")) != book.num_free:
            raise Failed(
                f"after step {step}, num_free is {free!r}; {book.num_free} blocks are free", example=example
            )
        step += 1


def _difference(step: int, found: tuple[list[Row], list[str]], right: tuple[list[Row], list[str]]) -> str:
    said = [f"rows {rows}{f', preempted {names}' if names else ''}" for rows, names in (found, right)]
    return f"step {step} has {said[0]}; by the rules it has {said[1]}"


def _all_shown(limits: Limits, asks: Sequence[Ask]) -> str:
    return f"Scheduler{tuple(limits)}; {', '.join(map(_shown, asks))}"


def _shown(ask: Ask) -> str:
    aborted = f", aborted after step {ask.abort}" if ask.abort >= 0 else ""
    return f"{ask.name}: before step {ask.step}, {ask.prompt} + {ask.output} tokens{aborted}"


def asks_of(*sizes: tuple[int, ...]) -> list[Ask]:
    """Return requests a, b, ... of (prompt, output) that come at once; a third number is the step of arrival."""
    return [
        Ask("abcdefgh"[at], size[2] if len(size) > 2 else 0, size[0], size[1])
        for at, size in enumerate(sizes)
    ]


# -- single rules


@check(LAB)
def a_prompt_then_a_token_a_step(learner: Learner) -> None:
    """A request computes its prompt from 0 on, then one token in each step."""
    compare(learner, asks_of((5, 4)), Limits(16, 4, 8, 4))
    compare(learner, asks_of((1, 1)), Limits(1, 1, 1, 1))
    compare(learner, asks_of((4, 3), (3, 3), (6, 1)), Limits(16, 4, 9, 4))


@check(LAB)
def a_long_prompt_is_cut(learner: Learner) -> None:
    """A prompt that is longer than the budget left is computed in chunks over several steps."""
    compare(learner, asks_of((11, 3)), Limits(4, 4, 8, 4))
    compare(learner, asks_of((3, 3), (9, 2), (6, 2)), Limits(8, 4, 12, 4))


@check(LAB)
def running_requests_come_first(learner: Learner) -> None:
    """Running requests get budget before waiting ones, in order of admission; the rows keep that order."""
    compare(learner, asks_of((2, 8), (2, 8), (9, 2, 1), (2, 2, 2)), Limits(5, 8, 20, 4))
    compare(learner, asks_of((2, 4), (2, 4), (2, 4)), Limits(2, 8, 20, 4))


@check(LAB)
def seats_are_limited(learner: Learner) -> None:
    """At most max_num_seqs requests run at once."""
    compare(learner, asks_of((2, 3), (2, 5), (2, 2), (2, 2)), Limits(16, 2, 20, 4))


@check(LAB)
def none_overtakes(learner: Learner) -> None:
    """The first waiting request that lacks blocks ends the admission, even if a later one would fit."""
    compare(learner, asks_of((7, 6), (20, 2), (2, 2), (3, 2)), Limits(32, 8, 6, 4))


@check(LAB)
def all_blocks_at_the_start(learner: Learner) -> None:
    """A request starts only with blocks for all its known tokens, and takes them in its first step."""
    compare(learner, asks_of((14, 2), (8, 2)), Limits(4, 8, 5, 4))
    compare(learner, asks_of((16, 2), (1, 9, 1)), Limits(3, 8, 6, 4))


@check(LAB)
def blocks_grow_one_by_one(learner: Learner) -> None:
    """A running request takes a block when its next token has none, and an ended request frees all of its own."""
    for size in (1, 2, 4):
        compare(learner, asks_of((3, 9), (4, 6), (5, 2)), Limits(16, 8, 40, size))


@check(LAB)
def the_last_one_is_preempted(learner: Learner) -> None:
    """Without a free block, the running request that was admitted last is preempted, and the step admits none."""
    compare(learner, asks_of((4, 8), (4, 8), (4, 8)), Limits(16, 8, 4, 4))
    compare(learner, asks_of((7, 9), (3, 9), (3, 3), (1, 1, 1), (1, 1, 2)), Limits(16, 8, 5, 4))


@check(LAB)
def it_may_preempt_itself(learner: Learner) -> None:
    """A request that lacks a block and was admitted last is preempted itself and has no row in that step."""
    compare(learner, asks_of((5, 12), (4, 6)), Limits(16, 8, 4, 4))
    compare(learner, asks_of((7, 4), (8, 3)), Limits(16, 8, 4, 4))


@check(LAB)
def the_preempted_resume_first(learner: Learner) -> None:
    """Preempted requests are first in the queue, in order of arrival, and compute prompt and output again from 0."""
    compare(learner, asks_of((4, 9), (4, 9), (3, 9), (3, 2, 1)), Limits(16, 8, 5, 4))
    compare(learner, asks_of((8, 14), (4, 9), (4, 9), (2, 2, 1), (2, 2, 3)), Limits(5, 8, 6, 4))
    compare(learner, asks_of(*[(2, 5)] * 6), Limits(16, 8, 6, 2))


@check(LAB)
def the_ended_leave(learner: Learner) -> None:
    """An ended or aborted request leaves at once, whether it waits or runs, and its blocks are free."""
    asks = [
        Ask("a", 0, 6, 9),
        Ask("b", 0, 6, 9, 2),
        Ask("c", 0, 4, 3),
        Ask("d", 0, 9, 3, 1),
        Ask("e", 0, 2, 2),
    ]
    for budget in (4, 16):
        compare(learner, asks, Limits(budget, 3, 8, 4))
    fcfs = learner.new("Scheduler", 8, 4, 8, 4)
    fcfs.add("a", 6, 4)
    fcfs.update([], ["x"])
    if (found := plan_of(fcfs.schedule())) != ([("a", 0, 6)], []):
        raise Failed(_difference(0, found, ([("a", 0, 6)], [])), example="add('a', 6, 4); update([], ['x'])")


@check(LAB)
def the_impossible_is_refused(learner: Learner) -> None:
    """`add` raises ValueError for an unfinished id and for a request that could never finish, and changes nothing."""
    fcfs = learner.new("Scheduler", 8, 1, 4, 4)
    fcfs.add("a", 13, 4)  # 16 computed tokens: 4 blocks
    fcfs.add("b", 4, 1)
    for call in (("a", 1, 1), ("b", 1, 1), ("c", 13, 5), ("d", 17, 1), ("e", 1, 17)):
        refused(f"Scheduler(8, 1, 4, 4): add{call}", fcfs.add, *call)
    said = "Scheduler(8, 1, 4, 4); add('a', 13, 4); add('b', 4, 1); five calls that are refused"
    for rows in ([("a", 0, 8)], [("a", 8, 5)]):
        if (found := plan_of(fcfs.schedule())) != (rows, []):
            raise Failed(_difference(rows[0][1] // 8, found, (rows, [])), example=said)
        fcfs.update(["a"] if rows[0][1] else [], ["a"] if rows[0][1] else [])
    if (found := plan_of(fcfs.schedule())) != ([("b", 0, 4)], []):
        raise Failed(_difference(2, found, ([("b", 0, 4)], [])), example=said)
    fcfs.add("a", 2, 2)  # the id is free again


# -- random workloads


def drawn(rng: Random, count: int) -> tuple[list[Ask], Limits]:
    """Draw requests, and a cache that is hardly larger than the largest of them."""
    size, longest = rng.choice([1, 2, 4]), rng.choice([3, 14])
    asks = []
    for at in range(count):
        step, prompt = rng.choice([0, 0, rng.randint(0, 9)]), rng.randint(1, longest)
        output = rng.randint(1, 12)
        abort = step + rng.randint(0, 8) if rng.random() < 0.15 else -1
        asks.append(Ask(f"r{at}", step, prompt, output, abort))
    largest = max(-(-(each.prompt + each.output - 1) // size) for each in asks)
    return asks, Limits(
        rng.choice([1, 3, 6, 16]), rng.randint(1, 5), largest + rng.choice([0, 1, 3, 8]), size
    )


@check(LAB)
def random_workloads(learner: Learner) -> None:
    """60 random workloads: rows, preemptions and free blocks follow the rules; a failure is cut to few requests."""
    rng = Random(4)
    for number in range(60):
        asks, limits = drawn(rng, 2 + number // 6)
        run_fewest(asks, partial(compare, learner, limits=limits))


# -- the engine's scheduler


class LabScheduler(Scheduler):
    """The engine's scheduler, which carries out the learner's plans on real blocks and judges each of them."""

    def __init__(self, config: SchedulerConfig, cache_config: CacheConfig, lab: Any) -> None:
        super().__init__(config, cache_config)
        self.lab = lab

    def add(self, request: Request) -> None:
        super().add(request)
        max_tokens = request.sampling_params.max_tokens
        self.lab.add(request.request_id, request.num_tokens, max_tokens)

    def schedule(self) -> SchedulerOutput:
        most, passed = len(self.requests), PassedOver(self.config, self.kv)
        plan = StepPlan(self.config.max_num_batched_tokens, most, most, passed)
        self.stats = StepStats(step=next(self._step))
        self.kv.begin_step()
        rows, preempted = plan_of(self.lab.schedule())
        for name in preempted:
            if not self.running or self.running[-1].request_id != name:
                raise Failed(
                    f"{name!r} was preempted; the running ones are {[r.request_id for r in self.running]}"
                )
            plan.preempted.append(name)
            self._preempt(self.running[-1])
        for name, start, count in rows:
            self._carry_out(plan, name, start, count)
        return self._close(plan)

    def _carry_out(self, plan: StepPlan, name: str, start: int, count: int) -> None:
        request = self.requests.get(name)
        said = f"the row {(name, start, count)}"
        if request is None or not 1 <= count <= min(plan.budget_left, request.num_tokens - start):
            raise Failed(f"{said} computes unknown tokens, or more than the {plan.budget_left} tokens left")
        is_new = request not in self.running
        if is_new:
            self.waiting.remove(request)
            found = self.kv.admit(request, PrefixHit(), request.num_tokens)
        else:
            found = self.kv.allocate(request, start + count)
        if found is None:
            raise Failed(f"{said} needs more than the {len(self.kv.pool.free)} blocks that are free")
        if is_new:
            self._start(request, 0, PrefixHit())
        if start != request.num_computed_tokens:
            raise Failed(f"{said} starts at the wrong token: {request.num_computed_tokens} are computed")
        self._add_row(plan, request, count, found, is_new)

    def update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[Any]:
        outputs = super().update(out, result)
        ended = [row.request_id for row in out.scheduled if row.request_id not in self.requests]
        self.lab.update(list(result.sampled_token_ids), ended)
        return outputs


def behind_engine(learner: Learner, config: SchedulerConfig, cache: CacheConfig) -> Scheduler:
    """Return the engine's scheduler on the learner's plans. One block of the cache is the null block."""
    limits = Limits(
        config.max_num_batched_tokens, config.max_num_seqs, cache.num_blocks - 1, cache.block_size
    )
    return LabScheduler(config, cache, learner.new("Scheduler", *limits))


def service(asks: Sequence[Ask], limits: Limits, learner: Learner | None = None) -> Service:
    """Return the engine's scheduler, on its own plans or the learner's, and the requests."""
    config = SchedulerConfig(limits.budget, limits.seqs, 1 << 16)
    cache = CacheConfig(limits.blocks + 1, limits.size, enable_prefix_caching=False)
    scheduler = Scheduler(config, cache) if learner is None else behind_engine(learner, config, cache)
    requests = []
    for ask in asks:
        params = SamplingParams(temperature=0, max_tokens=ask.output, ignore_eos=True)
        requests.append(Request(ask.name, [5] * ask.prompt, params))
    return scheduler, requests


@check(LAB)
def the_engine_decides_the_same(learner: Learner) -> None:
    """The engine's scheduler plans the same rows and preemptions, and its invariants hold on the learner's plans."""
    rng = Random(17)
    for count in (1, 2, 3, 3, 4, 5, 6, 8, 10, 12):
        asks, limits = drawn(rng, count)
        decide_the_same(
            LAB,
            asks,
            partial(service, limits=limits),
            partial(service, limits=limits, learner=learner),
            "by the engine's own plan",
            partial(_all_shown, limits),
        )
