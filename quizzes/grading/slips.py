"""Possible causes of a wrong number: off by one, or by a factor such as 8, 1000 or 1024."""

from __future__ import annotations

import math

FACTORS = (
    (8.0, "8 times the right one: bits for bytes?"),
    (1 / 8, "an eighth of the right one: bytes for bits?"),
    (1000.0, "1,000 times the right one: a prefix?"),
    (1 / 1000, "a thousandth of the right one: a prefix?"),
    (1024.0, "1,024 times the right one: a binary prefix?"),
    (1 / 1024, "1/1,024 of the right one: a binary prefix?"),
    (100.0, "100 times the right one: percent for a share?"),
    (1 / 100, "a hundredth of the right one: a share for percent?"),
    (2**30 / 10**9, "1.074 times the right one: GB for GiB?"),
    (10**9 / 2**30, "the right one divided by 1.074: GiB for GB?"),
    (2.0, "twice the right one: is something counted twice (K and V, out and in)?"),
    (0.5, "half of the right one: is a two missing (K and V, out and in, bytes per value)?"),
    (-1.0, "the right size with the other sign"),
)
CLOSE = 1e-3
"""Relative tolerance, small enough to make coincidences rare."""


def slip(value: float, expected: float, *, whole: bool) -> str:
    """Return a remark on a wrong number, or ""."""
    if whole and abs(value - expected) == 1:
        return "off by one"
    if expected == 0:
        return ""
    for factor, words in FACTORS:
        if math.isclose(value / expected, factor, rel_tol=CLOSE):
            return words
    return ""
