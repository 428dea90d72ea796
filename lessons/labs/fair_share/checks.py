"""Checks of the lab fair-share: single rules, random traffic, the engine's scheduler in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from engine.core.request import Request
from engine.sim.engine import SimEngine
from engine.sim.memory import Deployment
from engine.sim.recorder import RequestRecord
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from lessons.course.checking import Failed, Learner, check, refused, run_fewest, same, smallest
from lessons.labs.serving import admissions, h100

LAB = "fair-share"
Op = tuple[str, str, int]
"""("arrive", "tenant/number", tokens) or ("finish", "tenant/number", 0)."""


class Ledger:
    """A second opinion in fractions: it keeps every request that ever came, and works each tag out from them."""

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self.weights = weights or {}
        self.all: list[tuple[str, str, Fraction, Fraction]] = []
        """(id, tenant, start, finish), in order of arrival."""
        self.ended: set[int] = set()

    def arrive(self, request_id: str, tenant: str, tokens: int) -> float:
        before = [finish for _, who, _, finish in self.all if who == tenant]
        start = max([*before[-1:], self.now()])
        finish = start + Fraction(tokens) / Fraction(self.weights.get(tenant, 1))
        self.all.append((request_id, tenant, start, finish))
        return float(finish)

    def finish(self, request_id: str) -> None:
        self.ended |= {at for at, each in enumerate(self.all) if each[0] == request_id}

    def now(self) -> Fraction:
        unfinished = [start for at, (_, _, start, _) in enumerate(self.all) if at not in self.ended]
        finishes = [finish for _, _, _, finish in self.all]
        return min(unfinished) if unfinished else max([Fraction(0), *finishes])


def compare(learner: Learner, ops: Sequence[Op], weights: dict[str, float] | None = None) -> None:
    """Give the calls to the learner's class and to the ledger; raise Failed at the first difference."""
    fair, ledger, said = learner.new("FairShare", weights), Ledger(weights), []
    for name, request_id, tokens in ops:
        tenant = request_id.split("/")[0]
        if name == "finish":
            said.append(f"finish({request_id!r})")
            fair.finish(request_id)
            ledger.finish(request_id)
        else:
            said.append(f"arrive({request_id!r}, {tenant!r}, {tokens})")
            same(
                f"{said[-1]} returned",
                fair.arrive(request_id, tenant, tokens),
                ledger.arrive(request_id, tenant, tokens),
                said,
                within=1e-6,
            )
        same("virtual_time is", fair.get("virtual_time"), float(ledger.now()), said, within=1e-6)


def arrivals(*requests: tuple[str, int]) -> list[Op]:
    return [("arrive", f"{tenant}/{at}", tokens) for at, (tenant, tokens) in enumerate(requests)]


@check(LAB)
def the_key_is_the_finish(learner: Learner) -> None:
    """The first request gets its tokens as key, the next of the same tenant comes after it."""
    compare(learner, arrivals(("a", 100), ("a", 50), ("a", 1)))


@check(LAB)
def tenants_take_turns_by_tokens(learner: Learner) -> None:
    """A tenant's queue does not stand in another tenant's way: turns go by tokens, not by requests."""
    compare(learner, arrivals(("a", 100), ("a", 100), ("a", 100), ("b", 50), ("b", 100), ("a", 10)))
    compare(learner, arrivals(("a", 1000), ("b", 10), ("b", 10), ("b", 10)))


@check(LAB)
def a_weight_is_a_share(learner: Learner) -> None:
    """A tenant of weight 2 pays half as much per token; tenants without a weight have 1."""
    compare(learner, arrivals(("a", 100), ("b", 100), ("c", 100), ("a", 30)), {"a": 2.0, "b": 0.5})


@check(LAB)
def virtual_time_follows_the_unfinished(learner: Learner) -> None:
    """Virtual time is the smallest start tag of an unfinished request; finished ones no longer hold it back."""
    came = arrivals(("a", 100), ("a", 100), ("a", 100), ("b", 40), ("b", 40))
    compare(
        learner,
        [*came, ("finish", "a/0", 0), ("finish", "b/3", 0), ("finish", "b/4", 0), *arrivals(("c", 5))],
    )


@check(LAB)
def absence_earns_no_credit(learner: Learner) -> None:
    """A tenant that comes late, or comes back, starts at the virtual time."""
    came = [
        *arrivals(("b", 10), ("a", 100), ("a", 100), ("a", 100)),
        ("finish", "b/0", 0),
        ("finish", "a/1", 0),
    ]
    compare(learner, [*came, ("arrive", "b/8", 10), ("arrive", "c/9", 10)])


@check(LAB)
def an_idle_server_forgets(learner: Learner) -> None:
    """Without unfinished requests, virtual time is the largest finish tag: all tenants start level again."""
    came = [*arrivals(("a", 500)), ("finish", "a/0", 0)]
    compare(learner, [*came, ("arrive", "b/1", 20), ("arrive", "a/2", 10)])


@check(LAB)
def an_id_may_come_again(learner: Learner) -> None:
    """The id of a request that has ended may arrive again: it is a new request, unfinished until it ends."""
    came = [
        *arrivals(("a", 100), ("b", 40)),
        ("finish", "a/0", 0),
        ("arrive", "a/0", 30),
        ("finish", "b/1", 0),
    ]
    compare(learner, [*came, ("arrive", "c/2", 5), ("finish", "a/0", 0), ("arrive", "c/3", 5)])


@check(LAB)
def an_unknown_id_is_no_error(learner: Learner) -> None:
    """`finish` of an id that is not there, or is no longer there, changes nothing."""
    compare(
        learner,
        [
            ("finish", "x/0", 0),
            *arrivals(("a", 5)),
            ("finish", "a/0", 0),
            ("finish", "a/0", 0),
            ("arrive", "a/1", 5),
        ],
    )


@check(LAB)
def a_refused_call_changes_nothing(learner: Learner) -> None:
    """Tokens below 1, an id that is unfinished, and weights that are not positive raise ValueError."""
    for weights in ({"a": 0.0}, {"a": 1.0, "b": -2.0}):
        refused(f"FairShare({weights})", learner.new, "FairShare", weights)
    fair = learner.new("FairShare")
    fair.arrive("r0", "a", 10)
    refused("arrive('r1', 'a', 0)", fair.arrive, "r1", "a", 0)
    refused("arrive('r0', 'a', 7) while r0 is unfinished", fair.arrive, "r0", "a", 7)
    refused("arrive('r0', 'b', 7) while r0 is unfinished", fair.arrive, "r0", "b", 7)
    said = ["arrive('r0', 'a', 10)", "three calls that are refused", "arrive('r1', 'a', 5)"]
    same("the key is", fair.arrive("r1", "a", 5), 15.0, said)
    same("the key is", fair.arrive("r2", "b", 5), 5.0, [*said, "arrive('r2', 'b', 5)"])


@check(LAB)
def random_traffic(learner: Learner) -> None:
    """120 random sequences of arrivals and ends of up to four tenants: every key is that of the rules."""
    rng = Random(3)

    def run(count: int) -> None:
        ops: list[Op] = []
        open_ids: list[str] = []
        for at in range(count):
            if open_ids and rng.random() < 0.45:
                ops.append(("finish", open_ids.pop(rng.randrange(len(open_ids))), 0))
            else:
                open_ids.append(f"{rng.choice('abcd')}/{at}")
                ops.append(("arrive", open_ids[-1], rng.choice([1, 8, 64, 500])))
        weights = {"a": rng.choice([1.0, 2.0, 0.25]), "b": rng.choice([1.0, 4.0])}
        run_fewest(ops, lambda some: compare(learner, some, weights))

    smallest([2 + number // 8 for number in range(120)], run)


# -- the engine's scheduler


class Keys:
    """Hands the keys of a policy to the scheduler of a simulated engine. Tenants by the index of a request."""

    def __init__(
        self, policy: Any, engine: SimEngine, requests: Sequence[SimRequest], tenants: Sequence[str]
    ) -> None:
        self.policy, self.scheduler, self.tenants = policy, engine.scheduler, tenants
        self.sizes = {request.index: request.prompt_len + request.output_len for request in requests}
        self.unfinished: list[str] = []

    def __call__(self, request: Request, order: int) -> tuple[int, float, int]:
        for name in [each for each in self.unfinished if each not in self.scheduler.requests]:
            self.policy.finish(name)
            self.unfinished.remove(name)
        self.unfinished.append(request.request_id)
        index = int(request.request_id)
        key = self.policy.arrive(request.request_id, self.tenants[index], self.sizes[index])
        if not isinstance(key, int | float) or key != key:
            raise Failed(f"arrive returned {key!r}, which is not a number")
        return 0, float(key), order


def serve(
    policy: Any,
    requests: Sequence[SimRequest],
    tenants: Sequence[str],
    slots: Deployment | None = None,
    path: Path | None = None,
) -> list[RequestRecord]:
    """Serve requests with the engine's scheduler, in virtual time; return the records in order of admission.

    policy: None leaves the scheduler's own order, first come, first served. path: where to record a trace.
    """
    engine = make_engine(slots or h100(8), enable_prefix_caching=False)
    if policy is not None:
        keys = Keys(policy, engine, requests, tenants)
        setattr(engine.scheduler, "sort_key", keys)  # noqa: B010  a method, for mypy
    return admissions(engine, requests, path)


@check(LAB)
def the_scheduler_shares_by_it(learner: Learner) -> None:
    """One tenant floods the engine's scheduler, two others send little: the order of admission is that of the rules."""
    rng = Random(11)
    tenants, requests = [], []
    for index in range(50):
        tenants.append("flood" if index < 30 else rng.choice(["b", "c"]))
        when = 0.001 * index if index < 30 else 0.2 + 0.05 * (index - 30)
        requests.append(SimRequest(index, when, rng.randint(100, 900), rng.randint(20, 120)))
    weights = {"c": 2.0}
    ours = [record.request.index for record in serve(Ledger(weights), requests, tenants)]
    yours = [record.request.index for record in serve(learner.new("FairShare", weights), requests, tenants)]
    for place, (mine, theirs) in enumerate(zip(ours, yours, strict=True), 1):
        if mine != theirs:
            raise Failed(
                f"admission {place} is request {theirs} of tenant {tenants[theirs]}; by the rules it is request {mine} "
                f"of tenant {tenants[mine]}",
                example=f"30 requests of 'flood', then 20 of 'b' and 'c', weights {weights}",
            )
