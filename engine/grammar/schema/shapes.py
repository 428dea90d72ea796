"""Shapes: sets of values of one type, the canonical form of a JSON schema.

    {"minimum": 3, "maxLength": 2}     null     [Null()]                 number   [Number(low=3)]
                                       boolean  [Boolean({T, F})]        string   [String(most=2)]
                                       array    [Array()]                object   [Object()]

Forms hold, for every type, shapes of which a value must fit one. Two schemas at once are the pairs of their shapes,
each merged to one; either of two schemas is both lists together. So `type`, `allOf`, `anyOf` and keywords without a
type all become lists of shapes. Schemas of items and members stay places: they are expanded when they are compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import Any

from engine.grammar.schema.places import Place

Places = tuple[Place, ...]
"""Schemas that a value must satisfy at once; none: any value."""


def together(*groups: Places) -> Places:
    """Return the schemas of all groups, each once, in an order of their own, without those that allow any value."""
    by_path = {place.path: place for group in groups for place in group if place.schema not in (True, {})}
    return tuple(by_path[path] for path in sorted(by_path))


@dataclass(frozen=True)
class Null:
    """The value null."""

    def merged(self, other: Null) -> Null:
        return self


@dataclass(frozen=True)
class Boolean:
    """Some of true and false."""

    values: frozenset[bool] = frozenset({True, False})

    def merged(self, other: Boolean) -> Boolean | None:
        values = self.values & other.values
        return Boolean(values) if values else None


@dataclass(frozen=True)
class Number:
    """Numbers between bounds. `among`: only these."""

    low: Fraction | None = None
    high: Fraction | None = None
    without_low: bool = False
    without_high: bool = False
    is_whole: bool = False
    multiples: frozenset[Fraction] = frozenset()
    not_multiples: frozenset[Fraction] = frozenset()
    excluded: frozenset[Fraction] = frozenset()
    among: frozenset[Fraction] | None = None

    def merged(self, other: Number) -> Number | None:
        # At equal bounds the open one is tighter.
        low, without_low = max(
            ((s.low, s.without_low) for s in (self, other) if s.low is not None), default=(None, False)
        )
        tops = [(-s.high, s.without_high) for s in (self, other) if s.high is not None]
        high, without_high = max(tops, default=(None, False))
        shape = Number(
            low,
            None if high is None else -high,
            without_low,
            without_high,
            self.is_whole or other.is_whole,
            self.multiples | other.multiples,
            self.not_multiples | other.not_multiples,
            self.excluded | other.excluded,
            _both(self.among, other.among),
        )
        return None if shape.is_empty() else shape

    def holds(self, value: Fraction) -> bool:
        """Whether a number fits."""
        if self.among is not None and value not in self.among:
            return False
        if self.low is not None and (value < self.low or (self.without_low and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.without_high and value == self.high)):
            return False
        if (self.is_whole and value % 1) or value in self.excluded:
            return False
        return not any(value % m for m in self.multiples) and all(value % m for m in self.not_multiples)

    def is_empty(self) -> bool:
        """Whether surely no number fits."""
        if self.among is not None:
            return not any(map(self.holds, self.among))
        if self.low is None or self.high is None:
            return False
        is_open = self.without_low or self.without_high
        if self.low > self.high or (self.low == self.high and is_open):
            return True
        return self.low == self.high and not self.holds(self.low)


@dataclass(frozen=True)
class Test:
    """A pattern, a format or a text that a string must fit, or must not fit if `holds` is false."""

    keyword: str
    value: str
    path: str
    holds: bool = True


@dataclass(frozen=True)
class String:
    """Strings of `least` to `most` characters that pass tests. `among`: only these, in this order."""

    least: int = 0
    most: int | None = None
    tests: tuple[Test, ...] = ()
    among: tuple[str, ...] | None = None

    def merged(self, other: String) -> String | None:
        least, most = max(self.least, other.least), _lower(self.most, other.most)
        tests = tuple(dict.fromkeys(self.tests + other.tests))
        among = self.among if other.among is None else other.among
        if self.among is not None and other.among is not None:
            among = tuple(text for text in self.among if text in set(other.among))
        if among is not None:
            among = tuple(
                text for text in among if least <= len(text) and (most is None or len(text) <= most)
            )
        is_empty = among == () or (most is not None and least > most)
        return None if is_empty else String(least, most, tests, among)


@dataclass(frozen=True)
class Contains:
    """`least` to `most` items satisfy a schema."""

    item: Place
    least: int = 1
    most: int | None = None


@dataclass(frozen=True)
class Array:
    """Arrays that begin with `firsts` and go on with `rest`; `least` to `most` items in all."""

    firsts: tuple[Places, ...] = ()
    rest: Places = ()
    least: int = 0
    most: int | None = None
    contains: tuple[Contains, ...] = ()
    is_unique: bool = False
    num_described: int = 0  # First items that `unevaluatedItems` leaves out
    describes_rest: bool = False  # It leaves out all

    def merged(self, other: Array) -> Array | None:
        least, most = max(self.least, other.least), _lower(self.most, other.most)
        if most is not None and least > most:
            return None
        pairs = zip_longest(self.firsts, other.firsts)
        return Array(
            tuple(together(self.rest if a is None else a, other.rest if b is None else b) for a, b in pairs),
            together(self.rest, other.rest),
            least,
            most,
            tuple(dict.fromkeys(self.contains + other.contains)),
            self.is_unique or other.is_unique,
            max(self.num_described, other.num_described),
            self.describes_rest or other.describes_rest,
        )


@dataclass(frozen=True)
class Names:
    """Some names and all that a pattern finds something in; `inverted`: all other names."""

    names: frozenset[str] = frozenset()
    patterns: tuple[tuple[str, str], ...] = ()  # (Pattern, its place)
    inverted: bool = False


@dataclass(frozen=True)
class Members:
    """The schemas of the members that have certain names."""

    names: Names
    value: Places
    counts: bool = True  # Whether `unevaluatedProperties` leaves them out; not so under `not`


@dataclass(frozen=True)
class Object:
    """Objects whose members satisfy every entry of `members` that names them."""

    names: tuple[str, ...] = ()  # Names of properties, in the order in which they are written
    required: frozenset[str] = frozenset()
    members: tuple[Members, ...] = ()
    name_rules: Places = ()  # `propertyNames`
    least: int = 0
    most: int | None = None
    says_others: bool = False  # The schema says which other members are allowed

    def merged(self, other: Object) -> Object | None:
        least, most = max(self.least, other.least), _lower(self.most, other.most)
        required = self.required | other.required
        if most is not None and max(least, len(required)) > most:
            return None
        return Object(
            tuple(dict.fromkeys(self.names + other.names)),
            required,
            tuple(dict.fromkeys(self.members + other.members)),
            together(self.name_rules, other.name_rules),
            least,
            most,
            self.says_others or other.says_others,
        )


Shape = Any
"""Null, Boolean, Number, String, Array or Object."""
Forms = dict[str, tuple[Shape, ...]]
"""Shapes by type; a type without shapes has no values."""
ALL: Forms = {
    "null": (Null(),),
    "boolean": (Boolean(),),
    "number": (Number(),),
    "string": (String(),),
    "array": (Array(),),
    "object": (Object(),),
}
NOTHING: Forms = {}


def both(first: Forms, second: Forms) -> Forms:
    """Return the values that have both forms."""
    forms: Forms = {}
    for kind in ALL:
        pairs = [a.merged(b) for a in first.get(kind, ()) for b in second.get(kind, ())]
        if shapes := tuple(dict.fromkeys(shape for shape in pairs if shape is not None)):
            forms[kind] = shapes
    return forms


def either(several: Iterable[Forms]) -> Forms:
    """Return the values that have one of the forms."""
    listed = list(several)
    by_kind = {kind: [s for forms in listed for s in forms.get(kind, ())] for kind in ALL}
    return {kind: _joined(kind, shapes) for kind, shapes in by_kind.items() if shapes}


def _joined(kind: str, shapes: list[Shape]) -> tuple[Shape, ...]:
    """Return the shapes, each once; one that allows every value of its type stands for all."""
    if ALL[kind][0] in shapes:
        return tuple(dict.fromkeys([*filter(_describes, shapes), ALL[kind][0]]))
    if kind in ("string", "number"):  # constants become one shape
        few = dict.fromkeys(
            shape for shape in shapes if shape.among is not None and shape == type(shape)(among=shape.among)
        )
        if len(few) > 1:
            values = dict.fromkeys(value for shape in few for value in shape.among)
            joined = String(among=tuple(values)) if kind == "string" else Number(among=frozenset(values))
            shapes = [joined, *(shape for shape in shapes if shape not in few)]
    if kind == "boolean":
        return (Boolean(frozenset().union(*(shape.values for shape in shapes))),)
    return tuple(dict.fromkeys(shapes))


def _describes(shape: Shape) -> bool:
    """Whether `unevaluatedItems` or `unevaluatedProperties` leaves something of a shape out."""
    if isinstance(shape, Array):
        return shape.describes_rest or shape.num_described > 0
    return isinstance(shape, Object) and any(members.counts for members in shape.members)


def only(kind: str, shape: Shape) -> Forms:
    return {kind: (shape,)}


def _lower(first: int | None, second: int | None) -> int | None:
    return min((most for most in (first, second) if most is not None), default=None)


def _both(
    first: frozenset[Fraction] | None, second: frozenset[Fraction] | None
) -> frozenset[Fraction] | None:
    return second if first is None else first if second is None else first & second
