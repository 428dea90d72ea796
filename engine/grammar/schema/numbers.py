r"""Texts of numbers: a shape as a node.

    at least 1.25    [2-9] | [1-9][0-9]+, with any fraction  |  1 \. ( 25 any | 2[6-9] any | [3-9] any )

A number has at most 19 digits before its point (`max_digits`) and no exponent that overflows a double (RFC 8259,
section 6), for a small model may write digits without end. Numbers with limits come in plain decimals of few digits, so
that no reader rounds one across a bound. Each limit is a pattern, or an automaton that carries the remainder; together
they are intersected.
"""

from __future__ import annotations

from fractions import Fraction

from engine.core.grammar_protocol import GrammarError
from engine.grammar.language import Language
from engine.grammar.regex import (
    EMPTY,
    NEVER,
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    literal,
    optional,
    parse,
)
from engine.grammar.schema.integers import DIGIT, FIRST_DIGIT, integers, naturals
from engine.grammar.schema.layout import MAX_DIGITS, MOST_DIGITS
from engine.grammar.schema.shapes import Number

MAX_BOUND_DIGITS = 18  # Of a bound or a factor on either side of the point
MAX_WHOLE_DIGITS = 40  # Digits of a bound without a fraction: those of 64 and 128 bits are usual
LARGEST_EXPONENT = 308  # Of a double
MAX_REMAINDERS = 5_000  # States of the automaton for `multipleOf`
_DIGITS = Repeat(DIGIT, 0, None)
_FRACTION = optional(Sequence((literal("."), DIGIT, _DIGITS)))
_ZEROS = Repeat(literal("0"), 0, None)
_MINUS = literal("-")


def number_node(shape: Number, most_digits: int = MAX_DIGITS) -> Node:
    """Return the texts of a number. Raises GrammarError if a limit has too many digits.

    most_digits: of a number without a limit, before its point.
    """
    if shape.among is not None:
        values = sorted(filter(shape.holds, shape.among))
        return Choice(tuple(literal(_shown(value)) for value in values)) if values else NEVER
    if shape == Number(is_whole=shape.is_whole):
        return _integer(most_digits) if shape.is_whole else any_number(most_digits)
    if shape == Number(shape.low, shape.high, shape.without_low, shape.without_high, is_whole=True):
        return _whole(shape, most_digits)
    digits = _digits_of(shape, most_digits)
    plain = rf"-?[1-9][0-9]{{0,{digits - 1}}}|-?0"
    fractions = r"|-?(?:0|[1-9][0-9]{0,8})\.[0-9]{1,6}"
    language = Language.of(parse(plain if shape.is_whole else plain + fractions))
    if shape.low is not None and shape.low > -(10**digits):
        _check_bound(shape.low, "minimum")
        language &= Language.of(at_least(shape.low, shape.without_low))
    if shape.high is not None and shape.high < 10**digits:
        _check_bound(shape.high, "maximum")
        language &= Language.of(at_most(shape.high, shape.without_high))
    for factor in sorted(shape.multiples):
        language &= multiples(factor)
    for factor in sorted(shape.not_multiples):
        language -= multiples(factor)
    if shape.excluded:
        language -= Language.of(Choice(tuple(map(_every_spelling, sorted(shape.excluded)))))
    return language.node()


def _integer(most_digits: int) -> Node:
    return parse(f"0|-?[1-9][0-9]{{0,{most_digits - 1}}}")


def any_number(most_digits: int) -> Node:
    """Return the numbers without a limit: at most 308 digits with their exponent."""
    fraction = parse(r"(?:\.[0-9]{1,18})?")
    exponent = Sequence((parse("[eE][+-]?"), naturals(0, LARGEST_EXPONENT - most_digits, most_digits)))
    whole = parse(f"-?(?:0|[1-9][0-9]{{0,{most_digits - 1}}})")
    return Sequence((whole, fraction, optional(exponent)))


def at_least(bound: Fraction, is_open: bool = False) -> Node:
    """Return decimals of at least a bound; is_open: above it."""
    if bound > 0 or (bound == 0 and is_open):
        return _from(bound, is_open)
    return Choice((_from(Fraction(0), False), Sequence((_MINUS, _to(-bound, is_open)))))


def at_most(bound: Fraction, is_open: bool = False) -> Node:
    """Return decimals of at most a bound; is_open: below it."""
    if bound < 0 or (bound == 0 and is_open):
        return Sequence((_MINUS, _from(-bound, is_open)))
    return Choice((_to(bound, is_open), Sequence((_MINUS, _from(Fraction(0), False)))))


def multiples(factor: Fraction) -> Language:
    """Return the plain decimals that are multiples: after the point, as many digits as the factor has, then zeros.

    A state is (digits after the point or None before it, remainder of the digits read as an integer).
    """
    _check_digits(factor, "multipleOf")
    scale = 10 ** len(_parts(factor)[1])
    divisor = int(factor * scale)
    most = len(str(scale)) - 1
    if divisor * (most + 1) > MAX_REMAINDERS:
        raise GrammarError(
            f"multipleOf {_shown(factor)} needs more than {MAX_REMAINDERS:,} remainders; use fewer digits"
        )
    states: dict[tuple[int | None, int], int] = {(None, -1): 0, (None, -2): 1}  # -1: start, -2: after a sign
    edges: list[list[tuple[int, int, int]]] = [[], []]

    def number(state: tuple[int | None, int]) -> int:
        if state not in states:
            states[state] = len(edges)
            edges.append([])
        return states[state]

    edges[0].append((45, 45, 1))
    todo = list(states)
    seen = set(todo)
    for state in todo:  # grows
        places, rest = state
        after: list[tuple[int, tuple[int | None, int]]] = []
        known = max(rest, 0)
        for digit in range(10):
            if places is None:
                after.append((48 + digit, (None, (10 * known + digit) % divisor)))
            elif places < most:
                after.append((48 + digit, (places + 1, (10 * known + digit) % divisor)))
            elif digit == 0:
                after.append((48, state))
        if places is None and rest >= 0:
            after.append((46, (0, rest)))
        for character, target in after:
            edges[number(state)].append((character, character, number(target)))
            if target not in seen:
                seen.add(target)
                todo.append(target)
    ends = {
        index
        for (places, rest), index in states.items()
        if rest >= 0 and rest * 10 ** (most - (places or 0)) % divisor == 0
    }
    return Language(edges, ends)


def _whole(shape: Number, most_digits: int) -> Node:
    low = high = None
    if shape.low is not None:
        low = -(-shape.low.numerator // shape.low.denominator)
        low += shape.without_low and shape.low == low
    if shape.high is not None:
        high = shape.high.numerator // shape.high.denominator
        high -= shape.without_high and shape.high == high
    for bound, keyword in ((low, "minimum"), (high, "maximum")):
        if bound is not None:
            _check_digits(Fraction(bound), keyword, MAX_WHOLE_DIGITS)
    is_empty = low is not None and high is not None and low > high
    return NEVER if is_empty else integers(low, high, most_digits)


def _from(bound: Fraction, is_open: bool) -> Node:
    """Return decimals without a sign of at least a bound."""
    whole, digits = _parts(bound)
    same = Sequence((literal(whole), _fraction_from(digits, is_open)))
    return Choice((same, Sequence((naturals(int(whole) + 1, None, MOST_DIGITS + 1), _FRACTION))))


def _to(bound: Fraction, is_open: bool) -> Node:
    """Return decimals without a sign of at most a bound."""
    whole, digits = _parts(bound)
    same = Sequence((literal(whole), _fraction_to(digits, is_open)))
    return Choice((same, Sequence((naturals(0, int(whole) - 1, MAX_WHOLE_DIGITS), _FRACTION))))


def _fraction_from(digits: str, is_open: bool) -> Node:
    """Return fractions of at least 0.`digits`, with their point; the empty one if that is 0."""
    tail: Node = Sequence((_ZEROS, FIRST_DIGIT, _DIGITS)) if is_open else _DIGITS
    for digit in reversed(digits):
        above = [Sequence((_range(int(digit) + 1, 9), _DIGITS))] if digit != "9" else []
        tail = Choice((Sequence((literal(digit), tail)), *above))
    node = Sequence((literal("."), tail))
    return node if digits or is_open else _FRACTION


def _fraction_to(digits: str, is_open: bool) -> Node:
    """Return fractions of at most 0.`digits`, with their point, and the empty one."""
    if not digits:
        return NEVER if is_open else optional(Sequence((literal("."), _ZEROS)))
    tail: Node = NEVER if is_open else _ZEROS
    for digit in reversed(digits):
        below = [Sequence((_range(0, int(digit) - 1), _DIGITS))] if digit != "0" else []
        tail = Choice((Sequence((literal(digit), tail)), *below, EMPTY))
    return optional(Sequence((literal("."), tail)))


def _range(first: int, last: int) -> Node:
    return Characters(((48 + first, 48 + last),))


def _every_spelling(value: Fraction) -> Node:
    whole, digits = _parts(value)
    sign = _MINUS if value < 0 else EMPTY if value else optional(_MINUS)
    if digits:
        return Sequence((sign, literal(f"{whole}.{digits}"), _ZEROS))
    return Sequence((sign, literal(whole), optional(Sequence((literal("."), _ZEROS)))))


def _parts(value: Fraction) -> tuple[str, str]:
    """Return the digits before and after the point of the value without its sign."""
    text = _plain(abs(value))
    whole, _, digits = text.partition(".")
    return whole, digits


def _digits_of(shape: Number, most_digits: int) -> int:
    """Return the digits before the point that a number may have: as many as a bound has, if those are more."""
    bounds = [abs(int(bound)) for bound in (shape.low, shape.high) if bound is not None]
    sizes = [len(str(bound)) for bound in bounds if bound < 10**MAX_WHOLE_DIGITS]
    return max([most_digits, *sizes])


def _check_bound(bound: Fraction, keyword: str) -> None:
    _check_digits(bound, keyword, MAX_WHOLE_DIGITS if bound.denominator == 1 else MAX_BOUND_DIGITS)


def _check_digits(value: Fraction, keyword: str, most: int = MAX_BOUND_DIGITS) -> None:
    if max(map(len, _parts(value))) > most:
        digits = f"more than {most} digits before or after the point; round it"
        raise GrammarError(f"{keyword} {_shown(value)} has {digits}")


def _plain(value: Fraction) -> str:
    """Return a decimal number without an exponent."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    digits = str(abs(int(value * 10**places))).zfill(places + 1)
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def _shown(value: Fraction) -> str:
    """Return how a constant is written: as `json.dumps` does where that is exact."""
    plain = _plain(value)
    return plain if len(plain) <= 2 * MAX_BOUND_DIGITS else repr(float(value))
