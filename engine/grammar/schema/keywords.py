"""The keywords of one schema object that say something about values of one type, as a shape per type.

Keywords that combine schemas (`$ref`, `allOf`, `not`, ...) are in `forms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from engine.grammar.schema.formats import KNOWN_FORMATS, NOT_REGULAR
from engine.grammar.schema.places import Place, SchemaError, UnsupportedError
from engine.grammar.schema.shapes import (
    Array,
    Boolean,
    Contains,
    Forms,
    Members,
    Names,
    Null,
    Number,
    Object,
    String,
    Test,
    either,
    only,
    together,
)

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

TOO_LARGE = 2**1024
MAX_VALUES = 10_000
"""Values of `enum`, whose compilation takes about a second."""


def own_forms(place: Place, counts: bool) -> Forms:
    """Return the values that the keywords of one type allow. counts: see `Members`."""
    forms: Forms = {
        "null": (Null(),),
        "boolean": (Boolean(),),
        "number": (_number(place),),
        "string": (_string(place),),
        "array": (_array(place, counts),),
        "object": (_object(place, counts),),
    }
    named = types(place)
    if named is not None:
        if "integer" in named and "number" not in named:
            forms["number"] = tuple(
                shape and shape.merged(Number(is_whole=True)) for shape in forms["number"]
            )
            named = [*named, "number"]
        forms = {kind: shapes for kind, shapes in forms.items() if kind in named}
    kept = {kind: tuple(s for s in shapes if s is not None and s.merged(s)) for kind, shapes in forms.items()}
    return {kind: shapes for kind, shapes in kept.items() if shapes}


def types(place: Place) -> list[str] | None:
    """Return the value of `type` as a list."""
    named = place.schema.get("type")
    if named is None:
        return None
    kinds = [named] if isinstance(named, str) else named
    if not isinstance(kinds, list) or not kinds or not all(kind in TYPES for kind in kinds):
        raise SchemaError(
            f"{place.path}/type", f"{named!r} is not a JSON type; choose from {', '.join(TYPES)}"
        )
    return kinds


def constant(place: Place, keyword: str, value: Any) -> Forms:
    """Return the one value of `const`, or one of `enum`."""
    if value is None:
        return only("null", Null())
    if isinstance(value, bool):
        return only("boolean", Boolean(frozenset({value})))
    if isinstance(value, (int, float)):
        return only("number", Number(among=frozenset({exact(value, f"{place.path}/{keyword}")})))
    if isinstance(value, str):
        return only("string", String(among=(value,)))
    if isinstance(value, list):
        items = tuple(together((place.made(f"{keyword}/{i}", {"const": v}),)) for i, v in enumerate(value))
        return only("array", Array(items, (), len(value), len(value)))
    members = [
        member(name, place.made(f"{keyword}/{name}", {"const": inner})) for name, inner in value.items()
    ]
    others = Members(Names(frozenset(value), inverted=True), (place.made("(no)", False),), False)
    return only("object", Object(tuple(value), frozenset(value), (*members, others), says_others=True))


def constants(place: Place, keyword: str, values: Any) -> Forms:
    """Return the values of `enum`."""
    if not isinstance(values, list) or not values:
        raise SchemaError(f"{place.path}/{keyword}", f"must be a list of at least one value, got {values!r}")
    if len(values) > MAX_VALUES:
        why = f"it has {len(values):,} values, the maximum is {MAX_VALUES:,}; use fewer or a pattern"
        raise UnsupportedError(place.path, keyword, why)
    return either(constant(place, f"{keyword}/{i}", value) for i, value in enumerate(values))


def exact(value: Any, path: str) -> Fraction:
    """Return a number of JSON as the decimal number that was written."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SchemaError(path, f"must be a number, got {value!r}")
    if value in (float("inf"), float("-inf")) or value != value:
        raise SchemaError(path, f"must be a finite number, got {value!r}")
    if abs(value) >= TOO_LARGE:
        raise SchemaError(path, "a number beyond 1.8e308 fits no double; use a smaller one or leave it out")
    return Fraction(str(value))


def count(place: Place, keyword: str, default: int | None) -> int | None:
    """Return a number of characters, items or members."""
    if keyword not in place.schema:
        return default
    value = place.schema[keyword]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and abs(value) >= 2**63:
        raise SchemaError(
            f"{place.path}/{keyword}", "must be an integer of at least 0 and below 2^63; use a smaller one"
        )
    if not is_number or not value >= 0 or value != int(value):  # NaN is not >= 0
        raise SchemaError(f"{place.path}/{keyword}", f"must be an integer of at least 0, got {value!r}")
    return int(value)


def _number(place: Place) -> Number | None:
    schema, path = place.schema, place.path
    low, high = (
        exact(schema[name], f"{path}/{name}") if name in schema else None for name in ("minimum", "maximum")
    )
    shape: Number | None = Number(low, high)
    for name, is_low in (("exclusiveMinimum", True), ("exclusiveMaximum", False)):
        value = schema.get(name)
        if isinstance(value, bool):  # draft 4 and OpenAPI 3.0: about the bound beside it
            bound = low if is_low else high
            if not value or bound is None:
                continue
        elif name in schema:
            bound = exact(value, f"{path}/{name}")
        else:
            continue
        limit = Number(low=bound, without_low=True) if is_low else Number(high=bound, without_high=True)
        shape = shape and shape.merged(limit)
    if "multipleOf" in schema:
        factor = exact(schema["multipleOf"], f"{path}/multipleOf")
        if factor <= 0:
            raise SchemaError(f"{path}/multipleOf", f"must be above 0, got {schema['multipleOf']!r}")
        limit = Number(is_whole=True) if factor == 1 else Number(multiples=frozenset({factor}))
        shape = shape and shape.merged(limit)
    return shape


def _string(place: Place) -> String:
    tests = []
    for name in ("pattern", "format"):
        if name in place.schema:
            value = place.schema[name]
            if not isinstance(value, str):
                raise SchemaError(f"{place.path}/{name}", f"must be text, got {value!r}")
            if name == "format" and value in NOT_REGULAR and "string" in (types(place) or TYPES):
                why = f"the values of {value!r} are not a regular language; leave it out or write a pattern"
                raise UnsupportedError(place.path, name, why)
            if name == "pattern" or value in KNOWN_FORMATS:  # other formats are annotations
                tests.append(Test(name, value, f"{place.path}/{name}"))
    return String(count(place, "minLength", 0) or 0, count(place, "maxLength", None), tuple(tests))


def _array(place: Place, counts: bool) -> Array:
    schema = place.schema
    firsts, rest = items_of(place)
    contains: tuple[Contains, ...] = ()
    if "contains" in schema:
        least, most = count(place, "minContains", 1), count(place, "maxContains", None)
        contains = (Contains(_schema_at(place, "contains"), least or 0, most),)
    is_unique = schema.get("uniqueItems", False)
    if not isinstance(is_unique, bool):
        raise SchemaError(f"{place.path}/uniqueItems", f"must be true or false, got {is_unique!r}")
    return Array(
        tuple(together((first,)) for first in firsts),
        together(() if rest is None else (rest,)),
        count(place, "minItems", 0) or 0,
        count(place, "maxItems", None),
        contains,
        is_unique,
        len(firsts) if counts else 0,
        counts and rest is not None,
    )


def items_of(place: Place) -> tuple[list[Place], Place | None]:
    """Return the schemas of the first items, and of those after them."""
    keyword, rest = "prefixItems", "items"
    if isinstance(place.schema.get("items"), list):  # draft 7
        keyword, rest = "items", "additionalItems"
    firsts = place.all_at(keyword) if place.schema.get(keyword) else []
    return firsts, _schema_at(place, rest) if rest in place.schema else None


def member(name: str, value: Place, counts: bool = False) -> Members:
    return Members(Names(frozenset({name})), (value,), counts)


def without(shape: Any, path: str) -> tuple[Any, ...]:
    """Return the shapes of all values of its type but the one value of a shape."""
    if isinstance(shape, Number):
        return (Number(excluded=shape.among or frozenset()),)
    if isinstance(shape, String):
        return (String(tests=tuple(Test("const", text, path, False) for text in shape.among or ())),)
    return (Boolean(frozenset({True, False}) - shape.values),) if isinstance(shape, Boolean) else ()


def _object(place: Place, counts: bool) -> Object:
    schema = place.schema
    properties, patterns = place.map_at("properties"), place.map_at("patternProperties")
    members = [Members(Names(frozenset({name})), (inner,), counts) for name, inner in properties.items()]
    sources = tuple((pattern, f"{place.path}/patternProperties/{pattern}") for pattern in patterns)
    for source, inner in zip(sources, patterns.values(), strict=True):
        members.append(Members(Names(patterns=(source,)), (inner,), counts))
    if "additionalProperties" in schema:
        others = Names(frozenset(properties), sources, inverted=True)
        members.append(Members(others, (_schema_at(place, "additionalProperties"),), counts))
    required = names_at(place, "required")
    return Object(
        tuple(dict.fromkeys([*properties, *required])),
        frozenset(required),
        tuple(members),
        together((_schema_at(place, "propertyNames"),)) if "propertyNames" in schema else (),
        count(place, "minProperties", 0) or 0,
        count(place, "maxProperties", None),
        bool(schema.keys() & {"additionalProperties", "patternProperties", "propertyNames"}),
    )


def names_at(place: Place, keyword: str) -> list[str]:
    """Return the names in `required`; empty without it."""
    names = place.schema.get(keyword, [])
    if keyword == "required" and isinstance(names, bool):
        return []  # draft 3 and forms of OpenAPI's parameters: about the property, not its members
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"{place.path}/{keyword}", f"must be a list of names, got {names!r}")
    return names


def _schema_at(place: Place, keyword: str) -> Place:
    schema = place.schema[keyword]
    if not isinstance(schema, (Mapping, bool)):
        raise SchemaError(f"{place.path}/{keyword}", f"a schema is an object, true or false, not {schema!r}")
    return place.at(keyword)


def unsupported(place: Place) -> None:
    """Raise UnsupportedError for keywords that no backend enforces."""
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if keyword in place.schema:
            raise UnsupportedError(place.path, keyword, "its target depends on the way to it; use $ref")
