"""Patterns for numbers between bounds.

13 .. 427    1[3-9] | [2-9][0-9]  |  [1-3][0-9][0-9] | 4([01][0-9] | 2[0-7])
             two digits              three digits
"""

from __future__ import annotations

from engine.grammar.regex import Characters, Choice, Node, Repeat, Sequence, literal, optional

DIGIT, FIRST_DIGIT = Characters(((48, 57),)), Characters(((49, 57),))
MAX_FRACTION_DIGITS = 6  # Maximum decimals of a number with bounds, so that rounding cannot exceed them
FRACTION = Sequence((literal("."), Repeat(DIGIT, 1, MAX_FRACTION_DIGITS)))
_ZEROS = optional(Sequence((literal("."), Repeat(literal("0"), 1, MAX_FRACTION_DIGITS))))
_NOT_ZERO = Choice(
    tuple(
        Sequence((literal("." + "0" * zeros), FIRST_DIGIT, Repeat(DIGIT, 0, MAX_FRACTION_DIGITS - zeros - 1)))
        for zeros in range(MAX_FRACTION_DIGITS)
    )
)


def integers(low: int | None, high: int | None) -> Node:
    """Return the pattern of the integers from `low` to `high`, both included; None: unbounded."""
    options = []
    if high is None or high >= 0:
        options.append(_naturals(max(0, low or 0) if low is not None else 0, high))
    if low is None or low < 0:
        most = None if low is None else -low
        options.append(Sequence((literal("-"), _naturals(max(1, -high) if high is not None else 1, most))))
    return Choice(tuple(options))


def numbers(low: int | None, high: int | None, without_low: bool = False, without_high: bool = False) -> Node:
    """Return the pattern of decimal numbers between two integers, in plain notation."""
    options = []
    if high is None or high > 0 or (high == 0 and not without_high):
        is_cut = low is not None and low >= 0
        options.append(_positive(max(0, low or 0), high, is_cut and without_low, without_high))
    if low is None or low < 0:
        most = None if low is None else -low
        if high is not None and high <= 0:
            negative = _positive(-high, most, without_high or high == 0, without_low)
        else:
            negative = _positive(0, most, True, without_low)
        options.append(Sequence((literal("-"), negative)))
    return Choice(tuple(options))


def _positive(low: int, high: int | None, without_low: bool, without_high: bool) -> Node:
    """Return the pattern of decimal numbers of at least 0."""
    if high is not None and low == high:
        return Choice(()) if without_low or without_high else Sequence((literal(str(low)), _ZEROS))
    first = Sequence((literal(str(low)), _NOT_ZERO if without_low else optional(FRACTION)))
    rest = _naturals(low + 1, None if high is None else high - 1)
    options = [first, Sequence((rest, optional(FRACTION)))]
    if high is not None and not without_high:
        options.append(Sequence((literal(str(high)), _ZEROS)))
    return Choice(tuple(options))


def _naturals(low: int, high: int | None) -> Node:
    """Return patterns of integers of at least 0, by number of digits."""
    if high is not None and low > high:
        return Choice(())
    options: list[Node] = []
    while high is None or len(str(low)) < len(str(high)):
        size = len(str(low))
        options.append(_same_length(str(low), "9" * size))
        low = 10**size
        if high is None:
            options.append(Sequence((FIRST_DIGIT, Repeat(DIGIT, size, None))))
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
