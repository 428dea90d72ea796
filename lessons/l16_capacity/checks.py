"""Checks of lesson 16. The dashboards of 16.3 come from the simulator with one fault injected."""

from __future__ import annotations

import math
from functools import cache
from random import Random

from lessons.course.checking import Failed, Learner, check, refused, smallest
from quizzes.experiments.operations.metrics import FAULTS, incident

Panel = dict[str, float]


def same(found: object, expected: float | None) -> None:
    if expected is None or found is None:
        if found is not expected:
            raise Failed(f"returned {found!r}, expected {expected!r}")
    elif not isinstance(found, int | float) or not math.isclose(found, expected, rel_tol=1e-9):
        raise Failed(f"returned {found!r}, expected {expected:.6g}")


@check("16.1")
def memory_limits_the_batch(learner: Learner) -> None:
    """max_batch counts requests of prompt plus half an output that fit, at most max_num_seqs."""

    def run(case: tuple[int, int, int, int]) -> None:
        tokens, prompt, output, most = case
        count = 0
        while count < most and (count + 1) * (prompt + output // 2) <= tokens:
            count += 1
        found = learner.call("max_batch", *case)
        if type(found) is not int or found != count:
            raise Failed(f"returned {found!r}, expected {count}")

    smallest(
        [(10, 20, 2, 8), (100, 10, 0, 64), (100, 10, 5, 64), (100, 10, 20, 2), (400_000, 1200, 250, 256)], run
    )


def busy(case: tuple[float, float, int, float, int, float]) -> int:
    """Replicas by counting: one second of arrivals as seconds of work."""
    rate, prefill, output, step, batch, utilisation = case
    work = rate * (prefill + output * (step / batch))
    replicas = 0
    while replicas * utilisation < work - 1e-12:
        replicas += 1
    return replicas


def replicas(learner: Learner, cases: list[tuple[float, float, int, float, int, float]]) -> None:
    def run(case: tuple[float, float, int, float, int, float]) -> None:
        found = learner.call("replicas_needed", *case)
        if type(found) is not int or found != busy(case):
            raise Failed(f"returned {found!r}, expected {busy(case)}")

    smallest(cases, run)


@check("16.1")
def prompts_and_answers_both_work(learner: Learner) -> None:
    """Prefill and decode time add up: a replica does one or the other."""
    replicas(
        learner,
        [(10.0, 0.35, 1, 0.0, 1, 1.0), (10.0, 0.0, 100, 0.02, 8, 1.0), (10.0, 0.05, 100, 0.02, 8, 1.0)],
    )
    replicas(learner, [(10.0, 0.07, 70, 0.01, 10, 1.0), (20.0, 0.027, 250, 0.011, 64, 1.0)])


@check("16.1")
def a_step_serves_a_batch(learner: Learner) -> None:
    """The time of a decode step is shared by the requests of its batch."""
    replicas(
        learner,
        [(10.0, 0.0, 100, 0.01, 1, 1.0), (10.0, 0.0, 100, 0.01, 4, 1.0), (10.0, 0.0, 100, 0.01, 64, 1.0)],
    )


@check("16.1")
def spare_capacity_is_planned(learner: Learner) -> None:
    """Replicas are busy for at most the utilisation, and there are whole replicas only."""
    replicas(
        learner,
        [(10.0, 0.1, 1, 0.001, 8, 0.5), (10.0, 0.13, 100, 0.02, 8, 0.7), (1.0, 0.01, 10, 0.01, 8, 0.1)],
    )


@check("16.1")
def impossible_plans_are_refused(learner: Learner) -> None:
    """A batch below 1 and a utilisation outside of (0, 1] raise ValueError."""
    for batch, utilisation in ((0, 0.7), (8, 0.0), (8, 1.2)):
        case = (10.0, 0.1, 100, 0.02, batch, utilisation)
        refused(case, learner.call, "replicas_needed", *case)


@check("16.1")
def random_plans_agree(learner: Learner) -> None:
    """100 random plans agree with a count."""
    rng = Random(16)
    for _ in range(100):
        case = (rng.uniform(1, 50), rng.uniform(0.01, 0.3), rng.randint(1, 500))
        replicas(learner, [(*case, rng.uniform(0.005, 0.05), rng.randint(1, 128), rng.uniform(0.3, 1.0))])


@check("16.2")
def tokens_have_a_price(learner: Learner) -> None:
    """A million tokens cost what the fleet costs while it makes them."""

    def run(case: tuple[float, float]) -> None:
        dollars, speed = case
        hours = 1_000_000 / speed / 3600
        same(learner.call("cost_per_million_tokens", *case), hours * dollars)

    smallest([(3.6, 1000.0), (3.6, 2000.0), (28.8, 5000.0), (0.8, 37.5)], run)


@check("16.2")
def break_even_is_a_share(learner: Learner) -> None:
    """At the break-even load the fleet's tokens cost the API's price."""
    for dollars, speed, price in ((3.6, 2000.0, 1.0), (3.6, 5000.0, 0.4), (10.0, 9000.0, 2.5)):
        found = learner.call("break_even_load", dollars, speed, price)
        example = f"break_even_load({dollars}, {speed}, {price})"
        if not isinstance(found, float):
            raise Failed(f"returned {found!r}, expected a share", example=example)
        cost = dollars / 3600 / (found * speed) * 1e6 if found else math.inf
        if not math.isclose(cost, price, rel_tol=1e-9):
            raise Failed(
                f"at a load of {found:.3g} a million tokens cost {cost:.3f} $, not {price} $", example=example
            )


@check("16.2")
def a_slow_fleet_never_breaks_even(learner: Learner) -> None:
    """If the fleet costs more even at full speed, the answer is None; exactly at full speed it is 1."""
    if (found := learner.call("break_even_load", 3.6, 1000.0, 0.9)) is not None:
        raise Failed(f"returned {found!r}, expected None", example="break_even_load(3.6, 1000.0, 0.9)")
    same(learner.call("break_even_load", 3.6, 1000.0, 1.0), 1.0)


@check("16.2")
def nothing_else_is_rounded(learner: Learner) -> None:
    """Small prices keep their digits."""
    same(learner.call("cost_per_million_tokens", 0.01, 100_000.0), 0.01 / 360)
    same(learner.call("break_even_load", 0.01, 100_000.0, 1.0), 0.01 / 360)


@cache
def panels(fault: str, seed: int) -> tuple[Panel, Panel]:
    """Dashboards before and after a fault; a short run is enough for an overload."""
    run = incident(fault, seed, 0.1 if fault == "overload" else 0.4)
    return run.yesterday, run.today


def names(learner: Learner, *faults: str, seeds: tuple[int, ...] = (3, 8)) -> None:
    for fault in faults:
        for seed in seeds:
            yesterday, today = panels(fault, seed)
            found = learner.call("diagnose", yesterday, today)
            if found != fault:
                changed = {
                    name: f"{yesterday[name]:g} -> {value:g}"
                    for name, value in today.items()
                    if value != yesterday[name]
                }
                raise Failed(f"said {found!r}, the fault was {fault!r}", example=str(changed)[:480])


@check("16.3")
def demand_is_told_from_supply(learner: Learner) -> None:
    """More arrivals, and answers that do not end, are told from a slow engine."""
    names(learner, "missing_stop", "overload", "throttled_gpu")


@check("16.3")
def cache_faults_are_told_apart(learner: Learner) -> None:
    """A prefix that never hits is told from a pool that is too small."""
    names(learner, "volatile_prompt", "small_pool")


@check("16.3")
def budget_faults_are_told_apart(learner: Learner) -> None:
    """Prompts that block decodes are told from a budget that starves prompts."""
    names(learner, "no_chunking", "tiny_budget")


@check("16.3")
def a_healthy_day_is_healthy(learner: Learner) -> None:
    """The same dashboard twice has no fault, and neither has another ordinary day."""
    yesterday, _ = panels("none", 3)
    names(learner, "none")
    jitter = {name: value * 1.1 for name, value in yesterday.items() if name != "preemptions"}
    found = learner.call(
        "diagnose", yesterday, jitter | {"preemptions": 0, "kv_usage": yesterday["kv_usage"]}
    )
    if found != "none":
        raise Failed(f"said {found!r} of a day on which everything was 10 % higher")


@check("16.3")
def other_days_agree(learner: Learner) -> None:
    """All faults are named on another day's traffic."""
    names(learner, *FAULTS, seeds=(21,))


@check("16.3")
def zeros_do_no_harm(learner: Learner) -> None:
    """Figures that were 0 yesterday are no reason to fail."""
    yesterday, today = panels("small_pool", 3)
    found = learner.call("diagnose", yesterday | {"waiting": 0.0, "hit_rate": 0.0}, today | {"hit_rate": 0.0})
    if found not in ("small_pool", "volatile_prompt"):
        raise Failed(f"said {found!r}, expected 'small_pool'", example="waiting and hit_rate were 0")
