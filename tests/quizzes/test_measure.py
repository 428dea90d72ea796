"""Paired timing: intervals, order, repeats."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from quizzes.experiments import measure
from quizzes.experiments.measure import MAX_REPEATS, MIN_REPEATS, median_interval, paired_ratio


class Clock:
    """A clock that advances only while `work` runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log = ""

    def perf_counter(self) -> float:
        return self.now

    def work(self, name: str, seconds: Callable[[], float]) -> Callable[[], None]:
        def worker() -> None:
            self.log += name
            self.now += seconds()

        return worker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return clock


def test_the_ratio_is_the_time_of_the_first_over_the_second(clock: Clock) -> None:
    found = paired_ratio(clock.work("a", lambda: 0.3), clock.work("b", lambda: 0.1))
    assert found.median == pytest.approx(3) and found.lo == pytest.approx(3) and found.hi == pytest.approx(3)
    assert (found.a_seconds, found.b_seconds) == (pytest.approx(0.3), pytest.approx(0.1))


def test_the_two_take_turns_and_the_warm_up_is_not_counted(clock: Clock) -> None:
    found = paired_ratio(clock.work("a", lambda: 0.2), clock.work("b", lambda: 0.1))
    assert clock.log == "ab" * (1 + MIN_REPEATS) and found.repeats == MIN_REPEATS
    clock.log = ""
    paired_ratio(clock.work("a", lambda: 0.2), clock.work("b", lambda: 0.1), warm_up=False)
    assert clock.log == "ab" * MIN_REPEATS


def test_a_noisy_pair_is_measured_more_often_and_within_its_time(clock: Clock) -> None:
    rng = Random(1)
    noisy = clock.work("a", lambda: rng.choice((0.01, 0.1)))
    assert paired_ratio(noisy, clock.work("b", lambda: 0.02)).repeats == MAX_REPEATS
    noisy = clock.work("a", lambda: rng.choice((0.1, 1.0)))
    assert paired_ratio(noisy, clock.work("b", lambda: 0.2), seconds=3.0).repeats < MAX_REPEATS


def test_the_interval_holds_the_true_median_about_as_often_as_promised() -> None:
    held = widths = 0.0
    for seed in range(100):
        rng = Random(seed)
        median, lo, hi = median_interval([rng.gauss(10, 1) for _ in range(25)], seed=seed)
        assert lo <= median <= hi
        held += lo <= 10 <= hi
        widths += hi - lo
    assert 88 <= held <= 99
    assert 0.7 < widths / 100 < 1.3  # 2 * 1.96 * 1.253 / sqrt(25) is 0.98


def test_the_same_values_have_the_same_interval() -> None:
    values = [1.0, 1.2, 0.9, 1.1, 5.0]
    assert median_interval(values) == median_interval(values)
    assert median_interval(values)[0] == 1.1
