"""Checks of the lab router-affinity: the three rules on given replicas, then a simulated fleet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from engine.core.request import Request
from engine.sim.fleet import Fleet
from engine.sim.router import Replica
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, SimRequest, Workload
from lessons.course.checking import Failed, Learner, check, fewest, smallest
from lessons.labs.recording import recorded_engine
from lessons.labs.serving import h100

LAB = "router-affinity"


class Seen(NamedTuple):
    """A replica in the moment of a decision; `hit` in KV blocks."""

    index: int  # type: ignore[assignment]  # as the contract has it; a tuple has a method of that name
    load: int
    tokens: int
    hit: int


def most_of(replicas: Sequence[Seen], factor: float) -> int:
    return math.ceil(factor * (sum(each.load for each in replicas) + 1) / len(replicas))


def expected(replicas: Sequence[Seen], factor: float) -> int:
    """Return the index that the three rules choose, by elimination."""
    left = [each for each in replicas if each.load + 1 <= most_of(replicas, factor)]
    for key in (
        lambda each: -each.hit,
        lambda each: each.load,
        lambda each: each.tokens,
        lambda each: each.index,
    ):
        best = min(map(key, left))
        left = [each for each in left if key(each) == best]
    return left[0].index


def ask(learner: Learner, router: Any, replicas: Sequence[Seen], key: str = "chat") -> tuple[Any, Any, Any]:
    plain = [tuple(each) for each in replicas]
    chosen, asked, same = learner.call("lessons.given.routing:choose_plain", router, key, plain)
    return chosen, asked, same


def expect(learner: Learner, replicas: Sequence[Seen], factor: float = 1.25) -> None:
    chosen, _, _ = ask(learner, learner.new("AffinityRouter", factor), replicas)
    wrong(chosen, replicas, factor)


def wrong(chosen: Any, replicas: Sequence[Seen], factor: float) -> None:
    """Raise Failed if the choice is not the one of the rules."""
    if chosen == (best := expected(replicas, factor)):
        return
    shown = f"factor {factor:g}; {', '.join(map(str, replicas))}"
    if chosen is None:
        raise Failed("choose returned something that is not one of the ready replicas", example=shown)
    taken = next(each for each in replicas if each.index == chosen)
    if taken.load + 1 > (most := most_of(replicas, factor)):
        words = f"replica {chosen} would have {taken.load + 1} requests; the bound is {most}"
    else:
        words = f"replica {chosen} was chosen; the rules choose replica {best}"
    raise Failed(words, example=shown)


@check(LAB)
def the_longest_hit_wins(learner: Learner) -> None:
    """Within the bound, the longest cached prefix wins, even against an idler replica."""
    expect(learner, [Seen(0, 0, 0, 0)])
    expect(learner, [Seen(0, 4, 900, 0), Seen(1, 4, 900, 3), Seen(2, 4, 900, 1)])
    expect(learner, [Seen(0, 8, 900, 2), Seen(1, 9, 990, 3)])


@check(LAB)
def no_replica_runs_ahead(learner: Learner) -> None:
    """A replica whose load, this request included, would exceed the bound does not get it, whatever it caches."""
    expect(learner, [Seen(0, 0, 0, 0), Seen(1, 1, 90, 0), Seen(2, 3, 200, 9)])
    expect(learner, [Seen(0, 3, 100, 0), Seen(1, 3, 100, 0), Seen(2, 4, 100, 5)])
    expect(learner, [Seen(0, 4, 100, 0), Seen(1, 5, 100, 9)])
    expect(learner, [Seen(0, 0, 0, 0), Seen(1, 40, 9000, 50)])
    expect(learner, [Seen(0, 1, 50, 0), Seen(1, 2, 100, 7)])
    expect(learner, [Seen(0, 3, 90, 0), Seen(1, 4, 90, 1)])


@check(LAB)
def the_bound_is_rounded_up(learner: Learner) -> None:
    """The bound is rounded up: 2.5 requests allow 3."""
    expect(learner, [Seen(0, 1, 100, 0), Seen(1, 2, 100, 4)])
    expect(learner, [Seen(0, 1, 100, 0), Seen(1, 1, 100, 0), Seen(2, 2, 100, 4)])


@check(LAB)
def the_factor_counts(learner: Learner) -> None:
    """A larger factor allows more imbalance; 1 allows the least."""
    for factor in (1.0, 1.5, 2.0, 4.0):
        for load in range(2, 9):
            expect(learner, [Seen(0, 2, 100, 0), Seen(1, load, 100, 4)], factor)


@check(LAB)
def ties_go_to_the_least_loaded(learner: Learner) -> None:
    """Equal hits: the lowest load, then the fewest tokens, then the smallest index."""
    expect(learner, [Seen(0, 3, 100, 2), Seen(1, 2, 500, 2), Seen(2, 3, 100, 2)])
    expect(learner, [Seen(0, 3, 400, 0), Seen(1, 3, 300, 0), Seen(2, 3, 350, 0)])
    expect(learner, [Seen(0, 0, 0, 0), Seen(1, 0, 0, 0)])


@check(LAB)
def order_does_not_matter(learner: Learner) -> None:
    """Replicas come in any order, with gaps in their indices; the list itself stays as it is."""
    replicas = [Seen(7, 2, 100, 1), Seen(3, 2, 100, 1), Seen(12, 2, 100, 0)]
    for turn in range(3):
        turned = [*replicas[turn:], *replicas[:turn]]
        chosen, _, same = ask(learner, learner.new("AffinityRouter"), turned)
        wrong(chosen, turned, 1.25)
        if not same:
            raise Failed(
                "choose changed the list of ready replicas; it belongs to the fleet", example=str(turned)
            )


@check(LAB)
def caches_are_asked_once(learner: Learner) -> None:
    """`hit` is called at most once for a replica, and never for one over the bound."""
    for replicas in (
        [Seen(0, 2, 100, 1), Seen(1, 2, 100, 3)],
        [Seen(0, 0, 0, 0), Seen(1, 1, 100, 0), Seen(2, 9, 900, 5)],
    ):
        _, asked, _ = ask(learner, learner.new("AffinityRouter"), replicas)
        for each, count in zip(replicas, asked, strict=True):
            if count > (each.load < most_of(replicas, 1.25)):
                raise Failed(
                    f"the cache of replica {each.index} was asked {count} times",
                    example=", ".join(map(str, replicas)),
                )


@check(LAB)
def random_replicas(learner: Learner) -> None:
    """300 random fleets of up to 8 replicas: always the choice of the rules."""
    rng = Random(5)

    def run(count: int) -> None:
        replicas = [
            Seen(index, rng.randint(0, 4), 100 * rng.randint(0, 2), rng.choice([0, 0, 1, 5]))
            for index in rng.sample(range(20), count)
        ]
        factor = rng.choice([1.0, 1.25, 1.5, 2.0])
        average = (sum(each.load for each in replicas) + 1) / count
        if math.ceil(factor * average) == most_of(replicas, factor):  # else rounding of floats decides
            expect(learner, replicas, factor)

    smallest([1 + number // 40 for number in range(300)], run)


# -- a fleet


class LabRouter:
    """The learner's router in a simulated fleet. It notes what it saw and chose."""

    needs_state = True

    def __init__(self, learner: Any, factor: float = 1.25) -> None:
        self._learner, self._router = learner, learner.new("AffinityRouter", factor)
        self.decisions: list[tuple[list[Seen], Any]] = []

    def choose(self, request: SimRequest, core: Request, ready: Sequence[Replica]) -> Replica:
        seen = [Seen(each.index, each.load, each.tokens, each.hit(core)) for each in ready]
        chosen, _, _ = ask(self._learner, self._router, seen, request.route_key)
        self.decisions.append((seen, chosen))
        by_index = {each.index: each for each in ready}
        if chosen not in by_index:
            raise Failed(
                "choose returned something that is not one of the ready replicas",
                example=", ".join(map(str, seen)),
            )
        return by_index[chosen]


def fleet(
    router: Any,
    requests: Sequence[SimRequest],
    replicas: int = 3,
    num_blocks: int = 1500,
    path: Path | None = None,
    shown: int = 0,
) -> Any:
    """Serve requests on replicas of Llama-3 8B with a small KV cache, in virtual time.

    path: where to record a trace of the replica `shown`.
    """
    served = Fleet(partial(make_engine, h100(32), num_blocks=num_blocks), replicas, router)
    with recorded_engine(path, served.replicas[shown].engine):
        return served.run(requests)


@check(LAB)
def a_fleet_is_routed_as_by_ours(learner: Learner) -> None:
    """A fleet of three replicas serves 80 requests of 6 conversations; each decision is the one of the rules."""
    load = Workload(
        80, 40, Lengths(600, 1400), Lengths(20, 120), num_prefixes=6, prefix_len=512, max_model_len=4096
    )

    def first_wrong(requests: list[SimRequest]) -> Failed | None:
        router = LabRouter(learner)
        try:
            fleet(router, requests)
            for seen, chosen in router.decisions:
                wrong(chosen, seen, 1.25)
        except Failed as failed:
            return failed
        return None

    requests = list(load)
    if first_wrong(requests) is not None:
        some = fewest(requests, lambda few: bool(few) and first_wrong(few) is not None, 40)
        failed = first_wrong(some)
        if failed is not None:
            raise Failed(f"with {len(some)} requests: {failed.why}", example=failed.example)
