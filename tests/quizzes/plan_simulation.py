"""Simulate learners who follow the plan, the plan that it replaced, or a fixed number of new questions a day.

Run `python -m tests.quizzes.plan_simulation 1000` for the table in `quizzes.learning.plan`: mean number of questions
recalled on the day of the interview, and how much more it is with the plan than with the best other policy. Every
learner knows 70 % of new questions; time per day and number of questions are the same in all columns. A review is
remembered with the true probability: the model's with stability times 0.5, 1 or 2, or a steeper curve. The table has
the mean of these four, and the lowest gain.

Learners are simulated at once, as arrays of learner x question; `remembered` and `first` are FSRS-6 for arrays.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from fsrs.scheduler import DEFAULT_PARAMETERS as W
from numpy.typing import NDArray

from quizzes.learning.plan import LONGEST, REVIEW_TIME, plan

UNSEEN, MINUTES = 300, 4.0
KNOWN_AT_FIRST = 0.7
START = dt.date(2026, 1, 5)
TRUTHS = {"0.5 x": (0.5, -W[20]), "1 x": (1.0, -W[20]), "2 x": (2.0, -W[20]), "steeper": (1.0, -0.5)}
"""Name -> (factor of the model's stability, exponent of the forgetting curve)."""
CELLS = ((7, 5), (14, 5), (23, 2), (23, 5), (23, 10), (45, 5), (90, 5), (90, 10))
"""(days to the interview, hours a week)."""
NEVER = 10**6

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Policy:
    """New questions of a day, target retention and longest interval on a day, and what comes first."""

    new: Callable[[int], int]
    schedule: Callable[[int], tuple[float, int]]
    new_first: bool


def curve(passed: Any, stability: Any, exponent: float = -W[20]) -> Any:
    """Return the probability of recall so many days after a review."""
    return (1 + (0.9 ** (1 / exponent) - 1) * passed / stability) ** exponent


def interval(stability: Any, retention: float, longest: int) -> Any:
    """Return the days until the next review."""
    days = stability / (0.9 ** (-1 / W[20]) - 1) * (retention ** (-1 / W[20]) - 1)
    return np.clip(np.rint(days), 1, longest)


def first(known: Mask) -> tuple[Floats, Floats]:
    """Return stability and difficulty after the first answer: Good or Again."""
    start = [W[4] + 1 - math.exp(W[5] * rating) for rating in (0, 2)]
    return np.where(known, W[2], W[0]), np.clip(np.where(known, start[1], start[0]), 1, 10)


def remembered(stability: Floats, difficulty: Floats, passed: Any, known: Mask) -> tuple[Floats, Floats]:
    """Return stability and difficulty after a review on a later day: Good or Again."""
    lost = 1 - curve(passed, stability)
    good = stability * (
        1 + math.exp(W[8]) * (11 - difficulty) * stability ** -W[9] * (np.exp(lost * W[10]) - 1)
    )
    again = W[11] * difficulty ** -W[12] * ((stability + 1) ** W[13] - 1) * np.exp(lost * W[14])
    again = np.minimum(again, stability / math.exp(W[17] * W[18]))
    easy = W[4] + 1 - math.exp(W[5] * 3)
    moved = difficulty + (10 - difficulty) * np.where(known, 0.0, 2 * W[6]) / 9
    return np.maximum(np.where(known, good, again), 0.001), np.clip(W[7] * easy + (1 - W[7]) * moved, 1, 10)


def planned(days: int, hours: float) -> Policy:
    """Return what `prep plan` asks for."""
    found = plan(
        [],
        unseen=UNSEEN,
        minutes_per_question=MINUTES,
        hours_per_week=hours,
        interview=START + dt.timedelta(days=days),
        now=dt.datetime.combine(START, dt.time(12), dt.UTC),
    )
    return Policy(lambda day: found.new[day], lambda day: (0.9, NEVER), new_first=True)


def replaced(days: int, hours: float) -> Policy:
    """Return the policy before: intervals of at most a third of the time left, target 0.85 rising to 0.93."""

    def schedule(day: int) -> tuple[float, int]:
        left = days - day
        return round(0.85 + 0.08 * max(10 - left, 0) / 10, 4), max(1, left // 3)

    def cost(start: int) -> float:
        known = np.array([True])
        (stability, difficulty), day, total = first(known), start, 1.0
        while (due := day + int(interval(stability, *schedule(day))[0])) < days:
            stability, difficulty = remembered(stability, difficulty, due - day, known)
            day, total = due, total + REVIEW_TIME
        return total

    costs = [cost(day) for day in range(days)]

    def new(per_week: int, day: int) -> int:
        return (day + 1) * per_week // 7 - day * per_week // 7 if day < days - 3 else 0

    budget = hours * 60 / 7 * days / MINUTES
    per_week = 0
    while per_week < 280 and sum(new(per_week + 1, day) * cost for day, cost in enumerate(costs)) <= budget:
        per_week += 1
        if sum(new(per_week, day) for day in range(days)) >= UNSEEN:
            break
    return Policy(lambda day: new(per_week, day), schedule, new_first=False)


def fixed(count: int) -> Policy:
    """Return `count` new questions a day after the reviews, at the target retention 0.85."""
    return Policy(lambda day: count, lambda day: (0.85, NEVER), new_first=False)


def policies(days: int, hours: float) -> dict[str, Policy]:
    assert days <= LONGEST
    return {
        "plan": planned(days, hours),
        "before": replaced(days, hours),
        "5 a day": fixed(5),
        "10 a day": fixed(10),
    }


class Learners:
    """Learners who follow one policy. True recall has a factor of the stability and an exponent of its own."""

    def __init__(self, number: int, truth: str, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._factor, self._exponent = TRUTHS[truth]
        shape = (number, UNSEEN)
        self.stability, self.difficulty = np.ones(shape), np.ones(shape)
        self.due, self.last = np.full(shape, NEVER), np.full(shape, -1)
        self.asked = np.zeros(number, dtype=int)

    def chance(self, day: int) -> Floats:
        """Return the true probability that each question is recalled; 0 for those never asked."""
        known = curve(day - self.last, self._factor * self.stability, self._exponent)
        return np.where(self.last >= 0, known, 0.0)

    def learn(self, day: int, count: int, room: Floats, schedule: tuple[float, int]) -> Floats:
        """Answer up to `count` new questions; return the room that is left."""
        counts = np.minimum(np.minimum(count, UNSEEN - self.asked), np.maximum(room, 0).astype(int))
        column = np.arange(UNSEEN)
        new = (column >= self.asked[:, None]) & (column < (self.asked + counts)[:, None])
        self.stability[new], self.difficulty[new] = first(self._random.random(new.sum()) < KNOWN_AT_FIRST)
        self.last[new], self.due[new] = day, day + interval(self.stability[new], *schedule)
        self.asked += counts
        return room - counts

    def repeat(self, day: int, room: Floats, schedule: tuple[float, int]) -> Floats:
        """Review what is due, the oldest first; return the room that is left."""
        is_due = (self.due <= day) & (self.last != day)
        most = is_due.sum(axis=1).max()
        order = np.argsort(np.where(is_due, self.due, NEVER), axis=1, kind="stable")[:, :most]
        known = self._random.random(order.shape) < np.take_along_axis(self.chance(day), order, 1)
        cost = np.where(known, REVIEW_TIME, 1.0)
        before = room[:, None] - (np.cumsum(cost, axis=1) - cost)
        done = np.take_along_axis(is_due, order, 1) & (before >= REVIEW_TIME)
        learner, place = np.nonzero(done)
        at = (learner, order[learner, place])
        self.stability[at], self.difficulty[at] = remembered(
            self.stability[at], self.difficulty[at], day - self.last[at], known[done]
        )
        self.last[at], self.due[at] = day, day + interval(self.stability[at], *schedule)
        return room - np.where(done, cost, 0.0).sum(axis=1)


def recalled(policy: Policy, days: int, hours: float, truth: str, learners: int, seed: int = 0) -> Floats:
    """Return how many questions each learner recalls on the day of the interview (sum of probabilities)."""
    found = Learners(learners, truth, seed)
    room = np.zeros(learners)
    for day in range(days):
        room = np.minimum(room, 1.0) + hours * 60 / 7 / MINUTES
        schedule = policy.schedule(day)
        if policy.new_first:
            room = found.learn(day, policy.new(day), room, schedule)
        room = found.repeat(day, room, schedule)
        if not policy.new_first:
            room = found.learn(day, policy.new(day), room, schedule)
    return np.asarray(found.chance(days).sum(axis=1))


def mean_recalled(policy: Policy, days: int, hours: float, truth: str, learners: int) -> float:
    return float(recalled(policy, days, hours, truth, learners).mean())


def main(learners: int) -> None:
    names = list(policies(7, 5))
    print(f"{'days':>4} {'h/week':>6}", *(f"{name:>9}" for name in names), f"{'gain':>8}  lowest")
    for days, hours in CELLS:
        found = policies(days, hours)
        means = {
            truth: [mean_recalled(each, days, hours, truth, learners) for each in found.values()]
            for truth in TRUTHS
        }
        gains = {truth: plan / max(others) - 1 for truth, (plan, *others) in means.items()}
        lowest = min(gains, key=lambda truth: gains[truth])
        plan, *others = np.mean(list(means.values()), axis=0)
        print(
            f"{days:4} {hours:6}",
            *(f"{mean:9.0f}" for mean in (plan, *others)),
            f"{plan / max(others) - 1:+8.0%}  {gains[lowest]:+.0%} ({lowest})",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
