"""Checks of the lab lora-batching: single rules, no starvation, random traffic, the engine's scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.core.lora_slots import LoRASlots
from engine.core.request import Request
from engine.core.sched_output import NotScheduled, Reason
from engine.core.scheduler import Scheduler
from engine.core.stats import StepStats
from engine.sampling_params import SamplingParams
from lessons.course.checking import Failed, Learner, check, refused, run_fewest
from lessons.labs.serving import decisions

LAB = "lora-batching"
MAX_STEPS = 300
Waiting = list[tuple[str, str]]
Plan = tuple[list[tuple[str, int]], int]


class Ask(NamedTuple):
    """A request: arrival and length in steps, and the step before which its client leaves the queue, or -1."""

    name: str
    adapter: str
    step: int
    length: int
    leaves: int = -1


class Book:
    """A second opinion: the running requests, their slots, and the last use of each slot; the rest is derived."""

    def __init__(self, max_loras: int) -> None:
        self.adapters = [""] * max_loras
        self.last_used = [-1] * max_loras
        self.running: dict[str, int] = {}
        self.closed, self.closed_for, self.clock = -1, "", 0

    def users(self, slot: int) -> list[str]:
        return [name for name, where in self.running.items() if where == slot]

    def step(
        self, ended: Sequence[str], waiting: Sequence[tuple[str, str]], seats: int, choice: int = -1
    ) -> Plan:
        """Return what starts, and the closed slot, which is `choice` if one closes in this step."""
        for name in ended:
            self.clock += 1
            if (slot := self.running.pop(name)) >= 0:
                self.last_used[slot] = self.clock
        started: list[tuple[str, int]] = []
        if self.closed_for not in [name for name, _ in waiting]:
            self.closed, self.closed_for = -1, ""
        for name, adapter in waiting:
            if len(started) == seats:
                break
            slots = self.places(adapter)
            if slots:
                self.start(name, adapter, slots[0])
                started.append((name, slots[0]))
            elif not self.closed_for:
                self.closed, self.closed_for = self.choose(waiting, choice), name
        return started, self.closed

    def places(self, adapter: str) -> list[int]:
        """Return the slots in which a request can start, the right one first; -1 for the base model."""
        if not adapter:
            return [-1]
        if adapter in self.adapters:
            slot = self.adapters.index(adapter)
            return [slot] if slot != self.closed else []
        idle = [slot for slot in range(len(self.adapters)) if not self.users(slot)]
        return sorted(idle, key=lambda slot: (self.last_used[slot], slot))

    def start(self, name: str, adapter: str, slot: int) -> None:
        self.running[name] = slot
        if slot >= 0:
            self.adapters[slot] = adapter
        if name == self.closed_for:
            self.closed, self.closed_for = -1, ""

    def choose(self, waiting: Sequence[tuple[str, str]], choice: int) -> int:
        return choice


def plan_of(answer: Any) -> Plan:
    """Return the learner's plan as plain tuples."""
    try:
        started, closed = answer
        return [(name, slot) for name, slot in started], closed
    except (TypeError, ValueError):
        raise Failed(f"step returned {answer!r}; expected ([(request id, slot), ...], closed slot)") from None


def compare(learner: Learner, max_loras: int, asks: Sequence[Ask], seats: int = 99) -> dict[str, int]:
    """Serve requests with the learner's class; raise Failed at the first step that is not by the rules.

    Returns the step in which each request started. seats: most that run at once.
    """
    book, yours = Book(max_loras), learner.new("AdapterSlots", max_loras)
    said = f"{max_loras} slots, {seats} seats; {', '.join(map(_shown, asks))}"
    waiting: Waiting = []
    ends: dict[str, int] = {}
    began: dict[str, int] = {}
    step = 0
    while ends or any(each.name not in began and not 0 <= each.leaves <= step for each in asks):
        if step > MAX_STEPS:
            raise Failed(f"after {MAX_STEPS} steps {[name for name, _ in waiting]} still wait", example=said)
        gone = {each.name for each in asks if each.leaves == step}
        waiting += [(each.name, each.adapter) for each in asks if each.step == step]
        waiting = [each for each in waiting if each[0] not in gone]
        ended = [name for name, end in ends.items() if end == step]
        for name in ended:
            del ends[name]
        most = seats - len(ends)
        found = plan_of(yours.step(ended, list(waiting), most))
        was_closed = book.closed_for
        right = book.step(ended, waiting, most, choice=found[1])
        _judge(f"step {step}", found, right, book, was_closed, said)
        for name, _ in found[0]:
            began[name] = step
            ends[name] = step + next(each.length for each in asks if each.name == name)
        waiting = [each for each in waiting if each[0] not in began]
        step += 1
    return began


def _judge(step: str, found: Plan, right: Plan, book: Book, was_closed: str, said: str) -> None:
    slots = range(len(book.adapters))
    if book.closed_for and book.closed_for != was_closed and found[1] not in slots:
        why = (
            f"{step}: {book.closed_for!r} was passed over and no slot is closed: one of {[*slots]} must close"
        )
        raise Failed(f"{why}, and step returned {found[1]!r}", example=said)
    if found[0] != right[0]:
        raise Failed(f"{step} starts {found[0]}; by the rules it starts {right[0]}", example=said)
    if found[1] != right[1]:
        why = f"for {book.closed_for!r}" if book.closed_for else "no request needs it"
        raise Failed(
            f"after {step} the closed slot is {found[1]!r}, expected {right[1]} ({why})", example=said
        )


def _shown(ask: Ask) -> str:
    leaves = f", leaves before step {ask.leaves}" if ask.leaves >= 0 else ""
    return f"{ask.name} of {ask.adapter!r} in step {ask.step}, {ask.length} steps{leaves}"


def asks_of(*each: tuple[str, int, int]) -> list[Ask]:
    """Return requests r0, r1, ... of (adapter, step of arrival, steps)."""
    return [Ask(f"r{at}", adapter, step, length) for at, (adapter, step, length) in enumerate(each)]


# -- single rules


@check(LAB)
def the_base_model_needs_no_slot(learner: Learner) -> None:
    """Requests of the base model start at once, with slot -1, while all slots are in use."""
    compare(learner, 1, asks_of(("a", 0, 3), ("", 0, 2), ("", 1, 1)))
    compare(learner, 1, asks_of(("a", 0, 4), ("b", 1, 1), ("", 1, 2), ("", 2, 9), ("b", 7, 1)))


@check(LAB)
def an_adapter_is_shared(learner: Learner) -> None:
    """Requests of one adapter use its slot together, and no second slot."""
    compare(learner, 2, asks_of(("a", 0, 3), ("a", 0, 1), ("b", 0, 2), ("a", 1, 4), ("b", 1, 3)))


@check(LAB)
def a_slot_in_use_is_not_replaced(learner: Learner) -> None:
    """An adapter takes a slot only when the last user of the adapter in it has ended."""
    compare(learner, 1, asks_of(("a", 0, 4), ("a", 0, 2), ("b", 1, 1)))
    compare(learner, 2, asks_of(("a", 0, 3), ("b", 0, 5), ("c", 1, 1), ("d", 1, 1)))


@check(LAB)
def idle_adapters_stay(learner: Learner) -> None:
    """Empty slots come first, the lowest number first; an adapter without users stays and is used again."""
    compare(learner, 3, asks_of(("a", 0, 1), ("b", 2, 1), ("a", 4, 1), ("c", 6, 1), ("b", 8, 1), ("a", 8, 1)))


@check(LAB)
def the_longest_idle_is_replaced(learner: Learner) -> None:
    """Without an empty slot, a new adapter replaces the one whose last user ended first."""
    compare(learner, 2, asks_of(("a", 0, 5), ("b", 0, 2), ("c", 6, 1), ("b", 8, 1), ("a", 9, 1)))
    compare(learner, 3, asks_of(("a", 0, 1), ("b", 0, 1), ("c", 0, 1), ("a", 3, 1), ("d", 5, 2), ("e", 5, 1)))
    compare(learner, 2, asks_of(("a", 0, 2), ("b", 0, 4), ("a", 0, 6), ("c", 7, 1), ("b", 9, 1)))


@check(LAB)
def others_overtake(learner: Learner) -> None:
    """A request without a slot is passed over, and those behind it whose adapter has an open slot start."""
    compare(learner, 2, asks_of(("a", 0, 6), ("b", 0, 6), ("c", 1, 1), ("a", 1, 2), ("b", 1, 2), ("", 1, 1)))


@check(LAB)
def one_slot_closes(learner: Learner) -> None:
    """A slot closes for the first request that is passed over: from then on its adapter's requests wait too."""
    compare(learner, 1, asks_of(("a", 0, 3), ("b", 1, 2), ("a", 1, 2)))
    compare(learner, 2, asks_of(("a", 0, 4), ("b", 0, 4), ("c", 1, 2), ("d", 1, 2), ("a", 2, 2), ("b", 2, 2)))


@check(LAB)
def it_stays_closed_until_the_request_starts(learner: Learner) -> None:
    """The same slot stays closed in later steps; it opens as soon as the request starts, in whichever slot."""
    for first, second in ((3, 9), (9, 3), (6, 6)):
        later = [("a", 4, 2), ("b", 4, 2), ("a", 5, 3), ("b", 5, 3), ("c", 6, 3), ("b", 6, 1), ("a", 6, 1)]
        compare(learner, 2, asks_of(("a", 0, first), ("b", 0, second), ("c", 1, 2), *later))
        compare(
            learner,
            2,
            asks_of(("a", 0, first), ("b", 0, second), ("c", 1, 9), ("b", first, 2), ("a", first, 2)),
        )


@check(LAB)
def a_client_that_leaves_opens_it(learner: Learner) -> None:
    """A closed slot is open again when its request is no longer in `waiting`."""
    asks = [Ask("r0", "a", 0, 9), Ask("r1", "b", 1, 1, 3), Ask("r2", "a", 1, 4), Ask("r3", "a", 4, 1)]
    compare(learner, 1, asks)
    compare(learner, 1, [*asks, Ask("r4", "c", 2, 2), Ask("r5", "a", 5, 1)])
    compare(learner, 1, [*asks[:2], Ask("r2", "", 1, 9)], seats=2)


@check(LAB)
def seats_are_limited(learner: Learner) -> None:
    """At most `seats` requests start. The rest of the queue is not looked at, so no slot closes for it."""
    mixed = [
        ("a", 0, 3),
        ("a", 0, 2),
        ("b", 0, 2),
        ("", 0, 1),
        ("c", 1, 3),
        ("a", 1, 2),
        ("b", 1, 2),
        ("", 2, 1),
    ]
    for seats in (1, 2, 3):
        compare(learner, 2, asks_of(*mixed), seats)
    for bad in (0, -1):
        refused(f"AdapterSlots({bad})", learner.new, "AdapterSlots", bad)


@check(LAB)
def no_request_starves(learner: Learner) -> None:
    """While two adapters are always in use, a request of a third one starts within the longest running time."""
    asks = [Ask(f"r{at}", "ab"[at % 2], at // 2, 5) for at in range(80)]
    asks += [Ask("rare", "c", 6, 2), Ask("rarer", "d", 6, 2)]
    began = compare(learner, 2, asks)
    if began["rare"] > 11:
        raise Failed(
            f"'rare' came in step 6 and started in step {began['rare']}; all requests run for 5 steps"
        )


@check(LAB)
def no_slot_is_refused(learner: Learner) -> None:
    """Fewer than one slot raises ValueError."""
    for max_loras in (0, -1):
        refused(f"AdapterSlots({max_loras})", learner.new, "AdapterSlots", max_loras)


@check(LAB)
def random_traffic(learner: Learner) -> None:
    """80 random workloads on one to four slots; a failure is cut to few requests."""
    rng = Random(8)
    for number in range(80):
        max_loras, seats = rng.randint(1, 4), rng.choice([2, 4, 99])
        asks = []
        for at in range(2 + number // 4):
            step = rng.randint(0, 12)
            leaves = step + rng.randint(1, 6) if rng.random() < 0.1 else -1
            asks.append(Ask(f"r{at}", rng.choice(["", *"aaabbcdef"]), step, rng.randint(1, 7), leaves))
        run_fewest(asks, partial(compare, learner, max_loras, seats=seats))


# -- the engine's scheduler


class LabSlots(LoRASlots):
    """The engine's adapter slots, which let those requests start that the learner's class chooses."""

    def __init__(self, lab: Any, config: SchedulerConfig) -> None:
        super().__init__(config.max_loras)
        self.lab, self.config = lab, config
        self.queue: dict[str, Request] = {}
        self.ended: list[str] = []
        self.running = 0
        self.chosen: dict[str, int] = {}

    def add(self, request: Request) -> None:
        self.queue[request.request_id] = request

    def begin_step(self) -> None:
        super().begin_step()
        waiting = [(name, request.lora_key or "") for name, request in self.queue.items()]
        started, _ = plan_of(self.lab.step(self.ended, waiting, self.config.max_num_seqs - self.running))
        self.ended, self.chosen = [], dict(started)

    def why_not(self, request: Request, stats: StepStats) -> NotScheduled | None:
        if request.request_id in self.chosen:
            return None
        return NotScheduled(request.request_id, Reason.NO_LORA_SLOT, {"slots": self.max_loras})

    def acquire(self, request: Request) -> None:
        name, key = request.request_id, request.lora_key
        if key and key not in self.slot_of and not (self._free or self._idle):
            raise Failed(
                f"{name!r} of {key!r} starts while all {self.max_loras} slots are in use by other adapters"
            )
        super().acquire(request)
        where, slot = self.slot_of[key] if key else -1, self.chosen.pop(name)
        if slot != where:
            raise Failed(f"{name!r} starts in slot {slot}; its adapter {key or ''!r} is in slot {where}")
        del self.queue[name]
        self.running += 1

    def release(self, request: Request) -> None:
        super().release(request)
        self.ended.append(request.request_id)
        self.running -= 1


@check(LAB)
def the_engine_runs_it(learner: Learner) -> None:
    """The engine's scheduler admits by the learner's class: all requests finish, and its invariants hold."""
    rng = Random(23)
    for count in (3, 8, 25, 50):
        max_loras, seats = rng.randint(1, 3), rng.choice([2, 4, 8])
        config = SchedulerConfig(512, seats, 256, max_loras=max_loras)
        slots = LabSlots(learner.new("AdapterSlots", max_loras), config)
        scheduler = Scheduler(config, CacheConfig(400, 16), make_resources=lambda *_, slots=slots: [slots])
        requests = []
        for at in range(count):
            params = SamplingParams(temperature=0, max_tokens=rng.randint(1, 12), ignore_eos=True)
            adapter = rng.choice([None, *"aaabbcde"])
            requests.append(Request(f"r{at}", [at] * rng.randint(1, 8), params, lora_key=adapter))
        decisions(scheduler, requests)
        if scheduler.requests:
            left = sorted(scheduler.requests, key=lambda name: int(name[1:]))
            raise Failed(f"{left} of {count} requests have not finished after 400 steps, {max_loras} slots")
