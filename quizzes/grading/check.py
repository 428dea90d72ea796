"""Compare a value with the right one: a share of the points (1 right, 0 wrong, bands between), and possible causes of
a wrong number."""

import math
import re
from typing import Any

from quizzes.grading.parse import normal_word
from quizzes.question import Answer, Check

FLOAT_REL = 0.02
"""Default relative tolerance of floats: accepts rounding, rejects a wrong term."""
OTHER_ORDER = 0.5
"""Share for the right elements in the wrong order."""


def share_of_points(value: Any, expected: Any, answer: Answer) -> float:
    """Return the share, 0 to 1. `value` has the answer's type, `expected` the answer's unit."""
    if answer.type == "bool":
        return float(value is bool(expected))
    if answer.type == "word":
        return float(any(value == normal_word(str(word)) for word in (expected, *answer.accept)))
    if answer.type in ("words", "ints"):
        return _list_share(value, expected, answer)
    return _number_share(value, expected, answer.check, exact=answer.type == "int")


def is_tolerant(answer: Answer) -> bool:
    """Return whether other values than the exact one can be right."""
    check = answer.check
    declared = (check.abs, check.rel, check.factor, check.sign, check.bands)
    return any(limit is not None for limit in declared) or (answer.type == "float" and not check.exact)


def _list_share(value: list[Any], expected: Any, answer: Answer) -> float:
    wanted = list(expected) if isinstance(expected, list | tuple | set) else [expected]
    if answer.type == "words":
        wanted = [normal_word(str(word)) for word in wanted]
        same = value == wanted
    else:
        same = len(value) == len(wanted) and all(
            _number_share(one, other, answer.check, exact=True) == 1
            for one, other in zip(value, wanted, strict=True)
        )
    if same:
        return 1.0
    return OTHER_ORDER if len(wanted) > 1 and sorted(value) == sorted(wanted) else 0.0


def _number_share(value: float, expected: float, check: Check, *, exact: bool) -> float:
    if check.bands:
        reached = [
            band.points
            for band in check.bands
            if (band.rel is not None and within_rel(value, expected, band.rel))
            or (band.factor is not None and within_factor(value, expected, band.factor))
        ]
        return min(1.0, max(reached, default=0.0))
    if check.sign:
        return float(_sign(value) == _sign(expected))
    if check.factor is not None:
        return float(within_factor(value, expected, check.factor))
    if check.abs is not None:
        return float(abs(value - expected) <= check.abs * (1 + 1e-9))
    if check.rel is not None:
        return float(within_rel(value, expected, check.rel))
    if exact or check.exact:
        return float(same_number(value, expected))
    return float(within_rel(value, expected, FLOAT_REL))


def same_number(value: float, expected: float) -> bool:
    """Return whether two numbers are equal up to rounding errors."""
    return value == expected or math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)


def within_rel(value: float, expected: float, rel: float) -> bool:
    return abs(value - expected) <= rel * abs(expected) * (1 + 1e-9) + 1e-12


def within_factor(value: float, expected: float, factor: float) -> bool:
    """Return whether `value` is in [expected / factor, expected * factor], with the same sign."""
    if value == expected:
        return True
    if value * expected <= 0:
        return False
    return 1 / factor * (1 - 1e-9) <= value / expected <= factor * (1 + 1e-9)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


BYTES = re.compile(r"\b(?:[kKMGTP]i?)?(?:B|bits?|bytes?)\b")
"""Units of data, also in a rate: GB/s, KiB, FLOP/B."""
PREFIXED = re.compile(r"^(?:[kKMGTPmunµ]?(?:s|FLOP|FLOPS|W|Wh|Hz|J)|[kM]?(?:EUR|USD|\$))(?!\w)")
"""Other units that have prefixes: a count of tokens or blocks has none."""
SHARE = re.compile(r"^(?:%|share|)$")
SLIPS: tuple[tuple[float, str, tuple[re.Pattern[str], ...] | None], ...] = (
    (8.0, "8 times the right one: bits for bytes?", (BYTES,)),
    (1 / 8, "an eighth of the right one: bytes for bits?", (BYTES,)),
    (1000.0, "1,000 times the right one: a prefix?", (BYTES, PREFIXED)),
    (1 / 1000, "a thousandth of the right one: a prefix?", (BYTES, PREFIXED)),
    (1024.0, "1,024 times the right one: a binary prefix?", (BYTES,)),
    (1 / 1024, "1/1,024 of the right one: a binary prefix?", (BYTES,)),
    (100.0, "100 times the right one: percent for a share?", (SHARE,)),
    (1 / 100, "a hundredth of the right one: a share for percent?", (SHARE,)),
    (2**30 / 10**9, "1.074 times the right one: GB for GiB?", (BYTES,)),
    (10**9 / 2**30, "the right one divided by 1.074: GiB for GB?", (BYTES,)),
    (2.0, "twice the right one: is something counted twice?", None),
    (0.5, "half of the right one: is a two missing?", None),
    (-1.0, "the right size with the other sign", None),
)
"""Factor, its likely cause, and the units that the cause fits (None: any)."""
SLIP_REL = 1e-3
"""Relative tolerance, small enough to make coincidences rare."""


def slip(value: float, expected: float, *, whole: bool, unit: str = "") -> str:
    """Return a remark on a wrong number, or "". unit: of the right one; a count has no bits and bytes."""
    if whole and abs(value - expected) == 1:
        return "off by one"
    if expected == 0:
        return ""
    for factor, words, units in SLIPS:
        fits = units is None or any(pattern.search(unit) for pattern in units)
        if fits and math.isclose(value / expected, factor, rel_tol=SLIP_REL):
            return words
    return ""
