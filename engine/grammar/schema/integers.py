"""Patterns for integers between bounds.

13 .. 427    1[3-9] | [2-9][0-9]  |  [1-3][0-9][0-9] | 4([01][0-9] | 2[0-7])
             two digits              three digits
"""

from __future__ import annotations

from engine.grammar.regex import Characters, Choice, Node, Repeat, Sequence, literal
from engine.grammar.schema.layout import MAX_DIGITS

DIGIT, FIRST_DIGIT = Characters(((48, 57),)), Characters(((49, 57),))


def integers(low: int | None, high: int | None, most_digits: int = MAX_DIGITS) -> Node:
    """Return the pattern of the integers from `low` to `high`, both included; None: up to that many digits."""
    options = []
    if high is None or high >= 0:
        options.append(naturals(max(0, low or 0), high, most_digits))
    if low is None or low < 0:
        most = None if low is None else -low
        options.append(
            Sequence((literal("-"), naturals(max(1, -high) if high is not None else 1, most, most_digits)))
        )
    return Choice(tuple(options))


def naturals(low: int, high: int | None, most_digits: int) -> Node:
    """Return patterns of integers of at least 0, by number of digits; without `high` up to `most_digits`."""
    if high is not None and low > high:
        return Choice(())
    options: list[Node] = []
    while high is None or len(str(low)) < len(str(high)):
        size = len(str(low))
        options.append(_same_length(str(low), "9" * size))
        low = 10**size
        if high is None:
            options.append(Sequence((FIRST_DIGIT, Repeat(DIGIT, size, max(size, most_digits - 1)))))
            return Choice(tuple(options))
    options.append(_same_length(str(low), str(high)))
    return Choice(tuple(options))


def _same_length(low: str, high: str) -> Node:
    """Return patterns of numbers with as many digits as both bounds."""
    if not low:
        return literal("")
    if set(low) == {"0"} and set(high) == {"9"}:
        return Repeat(DIGIT, len(low), len(low))
    first, last = int(low[0]), int(high[0])
    if first == last:
        return Sequence((literal(low[0]), _same_length(low[1:], high[1:])))
    rest = len(low) - 1
    options: list[Node] = []
    if low[1:].strip("0"):  # some of the numbers that start like `low` are below it
        options.append(Sequence((literal(low[0]), _same_length(low[1:], "9" * rest))))
        first += 1
    is_cut = bool(high[1:].strip("9"))
    if is_cut:
        last -= 1
    if first <= last:
        digits = Characters(((48 + first, 48 + last),))
        options.append(Sequence((digits, Repeat(DIGIT, rest, rest))))
    if is_cut:
        options.append(Sequence((literal(high[0]), _same_length("0" * rest, high[1:]))))
    return Choice(tuple(options))
