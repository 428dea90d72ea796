"""Checks of the lab priority-aging: single rules, random calls, the engine's scheduler in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from engine.core.queues import HeapQueue, SortKey
from engine.core.request import Request
from engine.sim.memory import Deployment
from engine.sim.recorder import RequestRecord
from engine.sim.run import make_engine, scheduler_config
from engine.sim.workload import SimRequest
from lessons.course.checking import Failed, Learner, check, constant, run_fewest, same, smallest
from lessons.labs.serving import admissions, h100

LAB = "priority-aging"
SETTINGS: dict[str, float] = {"level": 10.0, "token": 0.0, "longest": 60.0}
Op = tuple[Any, ...]
"""("push", id, priority, arrival, tokens), ("pop",), ("peek",), ("remove", id) or ("change", id, priority)."""


@dataclass
class Waiting:
    """A waiting request of the second opinion."""

    priority: int
    arrival: float
    tokens: int


class Line:
    """A second opinion without keys: it looks at all requests at some late moment, and takes the least handicap."""

    def __init__(self, **settings: float) -> None:
        self.s = SETTINGS | settings
        self.waiting: dict[str, Waiting] = {}

    def handicap(self, each: Waiting) -> float:
        seconds = self.s["level"] * each.priority + self.s["token"] * each.tokens
        return sorted((0.0, seconds, self.s["longest"]))[1]

    def push(self, request_id: str, priority: int, arrival: float, tokens: int) -> float:
        if request_id in self.waiting:
            raise ValueError(request_id)
        self.waiting[request_id] = each = Waiting(priority, arrival, tokens)
        return arrival + self.handicap(each)

    def peek(self) -> str:
        if not self.waiting:
            raise IndexError
        now = 4096.0  # any moment gives the same order

        def place(request_id: str) -> tuple[float, float, str]:
            each = self.waiting[request_id]
            return self.handicap(each) - (now - each.arrival), each.arrival, request_id

        return min(self.waiting, key=place)

    def pop(self) -> str:
        request_id = self.peek()
        del self.waiting[request_id]
        return request_id

    def remove(self, request_id: str) -> bool:
        return self.waiting.pop(request_id, None) is not None

    def change(self, request_id: str, priority: int) -> float:
        each = self.waiting[request_id]
        each.priority = priority
        return each.arrival + self.handicap(each)


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the name of its error."""
    try:
        return call()
    except (ValueError, IndexError, KeyError) as error:
        return next(kind.__name__ for kind in (ValueError, IndexError, KeyError) if isinstance(error, kind))


def compare(learner: Learner, ops: Sequence[Op], **settings: float) -> None:
    """Make the calls, then pop all that still wait; raise Failed at the first result that differs."""
    yours, right = learner.new("AgingQueue", **(SETTINGS | settings)), Line(**settings)
    said = [", ".join(f"{key} {value:g}" for key, value in (SETTINGS | settings).items())]
    rest = [("pop",)] * sum(op[0] == "push" for op in ops)
    for name, *args in [*ops, *rest]:
        if not right.waiting and name == "pop" and len(said) > len(ops):
            break
        said.append(f"{name}({', '.join(repr(each) for each in args)})")
        gave, wants = (outcome(partial(getattr(queue, name), *args)) for queue in (yours, right))
        same(f"{said[-1]} gave", gave, wants, said)


def pushes(*requests: tuple[int, float] | tuple[int, float, int]) -> list[Op]:
    """Return pushes of requests a, b, c and so on: (priority, arrival), or with prompt tokens."""
    return [
        ("push", chr(ord("a") + at), each[0], each[1], each[2] if len(each) > 2 else 100)
        for at, each in enumerate(requests)
    ]


@check(LAB)
def the_key_is_arrival_and_handicap(learner: Learner) -> None:
    """`push` returns arrival + handicap: among equals it is first come, first served."""
    compare(learner, pushes((1, 5.0), (1, 2.0), (1, 9.0)))


@check(LAB)
def a_lower_number_goes_first(learner: Learner) -> None:
    """The lower priority number goes first among requests that arrive about together."""
    compare(learner, pushes((2, 1.0), (0, 3.0), (1, 2.0), (5, 0.0)))


@check(LAB)
def waiting_makes_up_for_priority(learner: Learner) -> None:
    """A request that has waited `level` seconds longer goes before one that is a level more urgent."""
    compare(learner, pushes((1, 0.0), (0, 9.0), (0, 11.0), (2, 1.0), (0, 20.0), (0, 22.0)))


@check(LAB)
def long_prompts_go_later(learner: Learner) -> None:
    """Each prompt token adds `token` seconds, so short prompts go first until a long one has waited."""
    some = pushes((0, 0.0, 4000), (0, 1.0, 80), (0, 7.0, 80), (0, 9.0, 80), (1, 0.0, 16))
    compare(learner, some, token=0.001953125)


@check(LAB)
def the_handicap_has_bounds(learner: Learner) -> None:
    """The handicap is at most `longest` for any priority and length, and never less than 0."""
    compare(learner, pushes((1_000_000, 0.0), (9, 1.0), (0, 59.0), (0, 61.5)))
    compare(learner, pushes((-7, 5.0), (0, 3.0), (-1, 4.0)))
    compare(learner, pushes((-2, 0.0, 512), (0, 7.0, 512), (5, 0.0, 4096)), token=0.03125)


@check(LAB)
def equal_keys_go_by_arrival(learner: Learner) -> None:
    """Ties go to the earlier arrival, then to the smaller id."""
    compare(learner, pushes((0, 20.0), (1, 10.0), (2, 0.0)))
    compare(learner, [("push", name, 1, 4.0, 10) for name in ("9", "b", "10", "a")])


@check(LAB)
def a_removed_request_is_gone(learner: Learner) -> None:
    """A removed request does not come again; removing one that does not wait returns False."""
    three = pushes((0, 1.0), (0, 2.0), (0, 3.0))
    compare(learner, [*three, ("remove", "a"), ("peek",), ("remove", "c"), ("remove", "c"), ("remove", "x")])
    compare(learner, [*three, ("pop",), ("remove", "a"), ("remove", "b"), ("remove", "c"), ("pop",)])


@check(LAB)
def an_id_that_comes_again_has_one_place(learner: Learner) -> None:
    """A request that is pushed again after a pop or a removal waits once, with its new key only."""
    two = pushes((0, 1.0), (1, 2.0))
    compare(learner, [*two, ("pop",), ("push", "a", 0, 1.0, 100), ("pop",), ("pop",), ("pop",)])
    compare(learner, [*two, ("remove", "a"), ("push", "a", 3, 1.0, 100)])
    compare(learner, [*two, ("remove", "a"), ("push", "a", 0, 1.0, 100), ("pop",), ("peek",)])


@check(LAB)
def a_change_keeps_the_arrival(learner: Learner) -> None:
    """`change` gives a new priority, up or down; the time that the request has waited and its length still count."""
    three = pushes((2, 0.0, 512), (1, 4.0, 512), (0, 16.0, 512))
    compare(learner, [*three, ("change", "a", 0), ("peek",), ("change", "a", 5), ("peek",)])
    compare(learner, [*three, ("change", "a", 1), ("change", "b", 1)], token=0.015625)
    compare(learner, [*three, ("change", "c", 0), ("change", "b", 4), ("change", "b", 1)])


@check(LAB)
def errors_change_nothing(learner: Learner) -> None:
    """An id that waits, an empty queue, an unknown id for `change` and negative seconds are errors."""
    compare(learner, [("pop",), ("peek",), ("change", "a", 1)])
    compare(learner, [*pushes((0, 1.0), (0, 2.0)), ("push", "a", 0, 9.0, 5), ("change", "x", 0)])
    for name in SETTINGS:
        if outcome(partial(learner.new, "AgingQueue", **(SETTINGS | {name: -1.0}))) != "ValueError":
            raise Failed("negative seconds must raise ValueError", example=f"AgingQueue({name}=-1.0)")


@check(LAB)
def the_length_counts_the_waiting(learner: Learner) -> None:
    """The length is the number of requests that wait, after any call."""
    queue, said = learner.new("AgingQueue"), []
    ops: list[tuple[Op, int]] = [
        (("push", "a", 0, 1.0, 10), 1),
        (("push", "b", 1, 1.0, 10), 2),
        (("change", "b", 0), 2),
        (("remove", "a"), 1),
        (("peek",), 1),
        (("push", "a", 0, 1.0, 10), 2),
        (("pop",), 1),
        (("pop",), 0),
    ]
    for (name, *args), right in ops:
        getattr(queue, name)(*args)
        said.append(f"{name}({', '.join(map(repr, args))})")
        if len(queue) != right:
            raise Failed(f"the length is {len(queue)}; {right} wait", example="; ".join(said))


def waiting(count: int) -> list[Op]:
    """Return pushes of so many requests, in an order that is not that of their keys."""
    return [("push", f"r{at}", at % 3, float(at * 7919 % count), 100) for at in range(count)]


@check(LAB)
def the_next_is_found_in_log_n(learner: Learner) -> None:
    """`peek` and `pop` cost O(log n), amortised, also after removals and changes."""
    for calls in ([("pop",)], [("peek",), ("pop",)]):

        def work_at(count: int, calls: list[Op] = calls) -> float:
            queue, times = learner.new("AgingQueue"), count // 2
            gone = [("remove", f"r{at}") for at in range(0, count, 4)]
            changed = [("change", f"r{at}", 0) for at in range(1, count, 4)]
            ops = [*waiting(count), *gone, *changed, *calls * times]
            return sum(learner.costs(queue, ops, len(calls) * times)) / times

        small, large = work_at(64), work_at(1_024)
        if large > 4 * small:  # log n grows by a factor of 10 / 6
            names = " and ".join(name for name, *_ in calls)
            raise Failed(
                f"{names}: O(log n), amortised, but the work grows from {small:,.0f} to {large:,.0f} steps",
                example="half of 64 waiting requests leave, then half of 1,024",
            )


@check(LAB)
def a_removal_costs_the_same_in_any_queue(learner: Learner) -> None:
    """`remove` costs O(1): its work is the same if 64 requests wait and if 2,048 do."""

    def work_at(count: int) -> list[int]:
        queue = learner.new("AgingQueue")
        gone = [("remove", f"r{at * 7 % count}") for at in range(12)]
        return learner.costs(queue, [*waiting(count), *gone], len(gone))

    constant(work_at, "remove: O(1)", "waiting requests", (64, 2_048))


@check(LAB)
def random_calls(learner: Learner) -> None:
    """80 random series of calls: every key and every id is that of the rules."""
    rng = Random(4)

    def run(count: int) -> None:
        settings = {
            "level": rng.choice([0.0, 4.0, 16.0]),
            "token": rng.choice([0.0, 0.0625]),
            "longest": rng.choice([8.0, 64.0]),
        }
        ops: list[Op] = []
        for at in range(count):
            name = rng.choice("abcde")
            known: Op = ("push", name, rng.randint(-1, 3), float(rng.randrange(at + 1)), rng.choice([8, 64]))
            ops.append(
                rng.choice(
                    [known, known, known, ("pop",), ("remove", name), ("change", name, rng.randint(0, 3))]
                )
            )
        run_fewest(ops, lambda some: compare(learner, some, **settings), tries=80)

    smallest([2 + number // 3 for number in range(80)], run)


# -- the engine's scheduler


class LabQueue(HeapQueue):
    """The scheduler's waiting queue with a contestant's order. A sort key is (0, key, order of addition)."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy
        self.by_id: dict[str, Request] = {}
        self.entered: str | None = None
        """Request that `sort_key` has pushed, just before the scheduler pushes it."""

    def sort_key(self, request: Request, order: int) -> SortKey:
        self.entered = request.request_id
        return 0, self._enter(request), order

    def _enter(self, request: Request) -> float:
        key = self.policy.push(
            request.request_id, request.priority, request.arrival_time, request.num_prompt_tokens
        )
        if not isinstance(key, int | float) or key != key:
            raise Failed(f"push returned {key!r}; a key is a number")
        return float(key)

    def push(self, request: Request) -> None:
        if self.entered != request.request_id:
            key = self._enter(request)
            if key != request.sort_key[1]:
                raise Failed(
                    f"push of a request that waits again returned {key:g}, at first {request.sort_key[1]:g}"
                )
        self.entered = None
        self.by_id[request.request_id] = request
        super().push(request)

    def peek(self) -> Request:
        return self._known(self.policy.peek())

    def pop(self) -> Request:
        request = self._known(self.policy.pop())
        del self.by_id[request.request_id]
        super().remove(request)
        return request

    def remove(self, request: Request) -> None:
        if self.policy.remove(request.request_id) is not True:
            raise Failed(f"remove({request.request_id!r}) did not return True, and it waits")
        del self.by_id[request.request_id]
        super().remove(request)

    def _known(self, request_id: Any) -> Request:
        if not isinstance(request_id, str) or request_id not in self.by_id:
            raise Failed(f"peek or pop returned {request_id!r}, which does not wait")
        return self.by_id[request_id]


def serve(
    policy: Any,
    requests: Sequence[SimRequest],
    slots: Deployment | None = None,
    blocks: int | None = None,
    path: Path | None = None,
) -> list[RequestRecord]:
    """Serve requests in virtual time; return the records in order of admission.

    policy: a queue, or the name of a policy of the scheduler. blocks: size of the KV cache. path: where to record.
    """
    where = slots or h100(8)
    config = scheduler_config(where, policy) if isinstance(policy, str) else None
    engine = make_engine(where, enable_prefix_caching=False, scheduler=config, num_blocks=blocks)
    if not isinstance(policy, str):
        queue = LabQueue(policy)
        engine.scheduler.waiting = queue
        engine.scheduler.sort_key = queue.sort_key  # type: ignore[method-assign]
    return admissions(engine, requests, path)


@check(LAB)
def the_scheduler_admits_by_it(learner: Learner) -> None:
    """Behind the engine's scheduler, urgent requests go first, others after their handicap, preempted ones included."""
    rng, requests, now = Random(12), [], 0.0
    for index in range(60):
        now += rng.expovariate(20)
        priority = rng.choice([0, 0, 0, 1, 2])
        requests.append(
            SimRequest(index, now, rng.randint(100, 900), rng.randint(20, 150), priority=priority)
        )
    settings = {"level": 0.5, "token": 0.0005, "longest": 2.0}
    ours = serve(Line(**(SETTINGS | settings)), requests, blocks=250)
    yours = serve(learner.new("AgingQueue", **settings), requests, blocks=250)
    for place, (mine, theirs) in enumerate(zip(ours, yours, strict=True), 1):
        if mine.request.index != theirs.request.index:
            right, wrong = mine.request, theirs.request
            raise Failed(
                f"admission {place}: request {wrong.index} (priority {wrong.priority}, arrival {wrong.arrival:.2f} s), "
                f"by the rules request {right.index} (priority {right.priority}, arrival {right.arrival:.2f} s)",
                example=f"60 requests at 20 per second on 8 seats, {settings}",
            )
