"""Values of graded parts from 1 to 5: how close a number is, and how much its interval says."""

from __future__ import annotations

from quizzes.grading import Part

NARROW, FAIR, WIDE = 3.0, 8.0, 30.0
"""Ratios of an interval's ends: up to the first it says much, up to the second something, beyond the third nothing."""
NARROW_SHARE, FAIR_SHARE, WIDE_SHARE = 20.0, 40.0, 80.0
"""Widths of intervals of shares, in percentage points, with the same meaning: 34 to 100 % says little about 97 %."""
CLOSE = 4.0
"""Closeness of a number from which its narrow interval earns a 5."""


def closeness(part: Part) -> float:
    """Return 1 to 5 for one graded part: right, off by a factor of 1.25, 2, 5, or more; options are right or wrong."""
    if part.ok:
        return 5.0
    numbers = (int, float)
    is_number = isinstance(part.given, numbers) and isinstance(part.expected, numbers)
    if not is_number or isinstance(part.expected, bool) or part.given * part.expected <= 0:
        return 1.0 + 2.0 * part.points / part.max_points if part.max_points else 1.0
    off = max(part.given / part.expected, part.expected / part.given)
    return 4.0 if off <= 1.25 else 3.0 if off <= 2 else 2.0 if off <= 5 else 1.0


def interval_value(part: Part) -> float:
    """Return 1 to 5 for a number with its interval: close and narrow, narrow or fair, wide, or it misses."""
    if part.interval is None:
        return min(4.0, closeness(part))
    if is_boundless(part):
        return min(2.0, closeness(part))
    if part.hit:
        if _is_within(part, NARROW, NARROW_SHARE):
            return 5.0 if closeness(part) >= CLOSE else 4.0
        return 4.0 if _is_within(part, FAIR, FAIR_SHARE) else 3.0
    return min(2.0, closeness(part))


def is_boundless(part: Part) -> bool:
    """Return whether an interval is too wide to say anything."""
    if part.interval is None:
        return False
    return _ratio(*part.interval) > WIDE or _points_of_share(part) > WIDE_SHARE


def _is_within(part: Part, ratio: float, points: float) -> bool:
    assert part.interval is not None
    return _ratio(*part.interval) <= ratio and _points_of_share(part) <= points


def _points_of_share(part: Part) -> float:
    """Return an interval's width within 0 to 100 %, in percentage points; 0 where the truth is not such a share."""
    assert part.interval is not None
    if part.unit != "%" or not isinstance(part.expected, int | float) or not 0 <= part.expected <= 100:
        return 0.0
    low, high = (min(max(end, 0.0), 100.0) for end in part.interval)
    return high - low


def _ratio(low: float, high: float) -> float:
    """Return how far an interval's ends lie apart: 1 for a point, without bound if it contains zero."""
    if low == high:
        return 1.0
    return max(high / low, low / high) if low * high > 0 else float("inf")
