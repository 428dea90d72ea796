"""Prove that no value satisfies several schemas at once, which makes `oneOf` the same as `anyOf`.

Types, constants and bounds tell most schemas apart; so does a property that both require, such as a discriminator.
What is not proved may still be true. Formats prove nothing: by the standard they may be mere annotations.
"""

from __future__ import annotations

from engine.core.grammar_protocol import GrammarError
from engine.grammar.schema.forms import Expander
from engine.grammar.schema.objects import is_never, values_of
from engine.grammar.schema.shapes import Array, Number, Object, Places, Shape, String
from engine.grammar.schema.strings import string_language

MAX_DEPTH = 8


def are_apart(expander: Expander, places: Places, depth: int = 0) -> bool:
    """Whether surely no value satisfies these schemas."""
    if is_never(places):
        return True
    if not places or depth > MAX_DEPTH:
        return False
    try:
        forms = expander.all_of(places)
    except GrammarError:  # it leads back to the schema in question, or is refused where it is compiled
        return False
    return all(_is_empty(expander, shape, depth) for shapes in forms.values() for shape in shapes)


def _is_empty(expander: Expander, shape: Shape, depth: int) -> bool:
    match shape:
        case Object():
            values = [values_of(shape, name) for name in shape.required]
            return any(are_apart(expander, value, depth + 1) for value in values)
        case Array():
            items = [*shape.firsts, *([shape.rest] if shape.least > len(shape.firsts) else [])][: shape.least]
            return any(are_apart(expander, item, depth + 1) for item in items)
        case String():
            try:
                return string_language(shape, loosely=True).is_empty()
            except GrammarError:
                return False
        case Number():
            return shape.is_empty() or _has_no_integer(shape)
    return False


def _has_no_integer(shape: Number) -> bool:
    if not shape.is_whole or shape.low is None or shape.high is None:
        return False
    first = -(-shape.low.numerator // shape.low.denominator)
    first += shape.without_low and first == shape.low
    return first > shape.high or (shape.without_high and first == shape.high)
