"""Intervals and sample sizes: published values, coverage by simulation, and edge cases."""

from __future__ import annotations

import math
from random import Random

import pytest

from prep_common.intervals import newcombe, quantile_interval, requests_needed, wilson


def test_intervals_have_the_published_values() -> None:
    # Newcombe 1998: table I (81 of 263, 15 of 148), table II (56/70 against 48/80).
    assert wilson(81, 263, 0.95) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148, 0.95) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert newcombe((48, 80), (56, 70), 0.95) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_ends_without_observations_are_the_widest() -> None:
    assert wilson(0, 0, 0.95) == (0.0, 1.0)
    assert newcombe((0, 0), (3, 5), 0.95) == (-1.0, 1.0)
    assert quantile_interval([], 0.5, 0.95) == (-math.inf, math.inf)


def test_the_median_needs_six_values_for_95_percent() -> None:
    assert quantile_interval([3, 1, 5, 2, 4], 0.5, 0.95) == (-math.inf, math.inf)
    assert quantile_interval([3, 1, 5, 2, 4, 6], 0.5, 0.95) == (1, 6)


@pytest.mark.parametrize(("share", "num"), [(0.5, 20), (0.9, 60), (0.99, 600)])
def test_a_quantile_lies_in_its_interval_as_often_as_promised(share: float, num: int) -> None:
    rng, runs = Random(7), 1000
    true = -math.log(1 - share)  # of the exponential distribution
    hits = 0
    for _ in range(runs):
        low, high = quantile_interval([rng.expovariate(1) for _ in range(num)], share, 0.9)
        hits += low <= true <= high
    assert hits / runs >= 0.9 - 3 * math.sqrt(0.09 / runs)


def test_the_sample_size_gives_the_power_that_it_promises() -> None:
    base, worse, alpha, power = 0.02, 0.06, 0.05, 0.8
    num = requests_needed(base, worse, alpha, power)
    rng, runs = Random(3), 600
    alarms = 0
    for _ in range(runs):
        one, two = (sum(rng.random() < share for _ in range(num)) for share in (base, worse))
        alarms += newcombe((one, num), (two, num), 1 - 2 * alpha)[0] > 0
    assert alarms / runs == pytest.approx(power, abs=0.06)
    with pytest.raises(ValueError, match="must be above"):
        requests_needed(0.1, 0.1, 0.05, 0.8)
