"""Confidence intervals that hold for any distribution, and the sample size that a claim needs.

proportions    Wilson's score interval; Newcombe's hybrid score interval for the difference of two of them
               (Newcombe, Statistics in Medicine 17, 1998, methods 3 of the one and 10 of the two)
quantiles      order statistics: the number of values below a quantile is binomial, whatever their distribution
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

_NORMAL = NormalDist()


def wilson(count: int, total: int, confidence: float) -> tuple[float, float]:
    """Return the two-sided score interval of a proportion; (0, 1) without observations."""
    if not total:
        return 0.0, 1.0
    z = _NORMAL.inv_cdf(0.5 + confidence / 2)
    share, weight = count / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def newcombe(first: tuple[int, int], second: tuple[int, int], confidence: float) -> tuple[float, float]:
    """Return the interval of the second proportion minus the first one; each is (count, total)."""
    if not first[1] or not second[1]:
        return -1.0, 1.0
    one, two = first[0] / first[1], second[0] / second[1]
    low_one, high_one = wilson(*first, confidence)
    low_two, high_two = wilson(*second, confidence)
    difference = two - one
    return (
        difference - math.hypot(two - low_two, high_one - one),
        difference + math.hypot(high_two - two, one - low_one),
    )


def quantile_interval(values: Sequence[float], share: float, confidence: float) -> tuple[float, float]:
    """Return the two-sided interval of a quantile from order statistics; an end without enough values is infinite.

    share: of the quantile, 0.5 for the median.
    """
    ordered, num, tail = sorted(values), len(values), (1 - confidence) / 2
    below = 0.0
    low, high = -math.inf, math.inf
    for rank in range(num):  # at most `rank` values lie below the quantile: probability `below`
        below += _binomial(num, rank, share)
        if below <= tail:
            low = ordered[rank]
        if high == math.inf and 1 - below <= tail:
            high = ordered[rank]
    return low, high


def _binomial(num: int, count: int, share: float) -> float:
    log = math.lgamma(num + 1) - math.lgamma(count + 1) - math.lgamma(num - count + 1)
    return math.exp(log + count * math.log(share) + (num - count) * math.log1p(-share))


def requests_needed(base: float, worse: float, alpha: float, power: float) -> int:
    """Return the requests of each side for a one-sided test to tell two proportions apart.

    base, worse: the proportions, worse > base. alpha: probability of a false alarm. power: probability of an alarm if
    the proportions are these. Normal approximation; Fleiss, Statistical Methods for Rates and Proportions, 4.14.
    """
    if not 0 <= base < worse <= 1:
        raise ValueError(f"the worse proportion must be above the other one, got {worse!r} and {base!r}")
    mean = (base + worse) / 2
    pooled = _NORMAL.inv_cdf(1 - alpha) * math.sqrt(2 * mean * (1 - mean))
    apart = _NORMAL.inv_cdf(power) * math.sqrt(base * (1 - base) + worse * (1 - worse))
    return math.ceil(((pooled + apart) / (worse - base)) ** 2)
