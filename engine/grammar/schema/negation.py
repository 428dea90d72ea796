"""The opposite of each keyword: which values it rejects.

minimum: 3          {"type": "number", "exclusiveMaximum": 3}
required: [a, b]    objects without a, objects without b
properties: {a: S}  objects whose a is not S
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.grammar.schema import keywords
from engine.grammar.schema.places import Place, UnsupportedError
from engine.grammar.schema.shapes import ALL, Array, Contains, Forms, Number, Object, String, Test, only

HAVE_NONE: tuple[str, ...] = (
    "format",
    "uniqueItems",
    "patternProperties",
    "propertyNames",
    "unevaluatedItems",
)
HAVE_NONE += ("unevaluatedProperties", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
OPPOSITE_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}


def opposites(place: Place) -> Iterator[Forms]:
    """Return, for each keyword about one type, the values that it rejects. Raises UnsupportedError if it has none."""
    schema = place.schema
    for keyword in HAVE_NONE:
        if keyword in schema and not (keyword == "format" and schema[keyword] not in keywords.KNOWN_FORMATS):
            raise UnsupportedError(
                place.path,
                keyword,
                "it stands inside not, if or an overlapping oneOf; use anyOf or leave it out",
            )
    if "type" in schema:
        yield _other_types(place)
    for keyword, opposite in OPPOSITE_BOUNDS.items():
        if keyword in schema and not isinstance(schema[keyword], bool):
            yield _rewritten(place, keyword, {"type": "number", opposite: schema[keyword]})
        elif keyword in schema:
            raise UnsupportedError(
                place.path, keyword, "as true or false it stands inside not, if or oneOf; give it a number"
            )
    if "multipleOf" in schema:
        factor = keywords.exact(schema["multipleOf"], f"{place.path}/multipleOf")
        yield only("number", Number(not_multiples=frozenset({factor})))
    if "pattern" in schema:
        yield only(
            "string", String(tests=(Test("pattern", schema["pattern"], f"{place.path}/pattern", False),))
        )
    for kind, least, most in (
        ("string", "minLength", "maxLength"),
        ("array", "minItems", "maxItems"),
        ("object", "minProperties", "maxProperties"),
    ):
        if low := keywords.count(place, least, 0):
            yield _rewritten(place, least, {"type": kind, most: low - 1})
        if (high := keywords.count(place, most, None)) is not None:
            yield _rewritten(place, most, {"type": kind, least: high + 1})
    yield from _of_arrays(place)
    yield from _of_objects(place)


def _rewritten(place: Place, keyword: str, schema: Any) -> Forms:
    return keywords.own_forms(place.made(f"not {keyword}", schema), False)


def _other_types(place: Place) -> Forms:
    named = keywords.types(place) or []
    forms = {kind: shapes for kind, shapes in ALL.items() if kind not in named}
    if "integer" in named and "number" not in named:
        forms["number"] = (Number(not_multiples=frozenset({keywords.exact(1, "")})),)
    return forms


def _not(place: Place) -> Place:
    return place.made("(not)", {"not": place.schema})


def _of_arrays(place: Place) -> Iterator[Forms]:
    schema = place.schema
    firsts, rest = keywords.items_of(place)
    for index, first in enumerate(firsts):
        broken = (*((),) * index, (_not(first),))
        yield only("array", Array(broken, (), index + 1))
    if rest is not None:
        if firsts and rest.schema is not False:
            raise UnsupportedError(
                place.path,
                "items",
                "after prefixItems it stands inside not, if or oneOf; use anyOf or leave it out",
            )
        if firsts:
            yield only("array", Array((), (), len(firsts) + 1))
        else:
            yield only("array", Array(contains=(Contains(_not(rest)),)))
    if "contains" in schema:
        least, most = keywords.count(place, "minContains", 1), keywords.count(place, "maxContains", None)
        if least:
            yield only("array", Array(contains=(Contains(place.at("contains"), 0, least - 1),)))
        if most is not None:
            yield only("array", Array(contains=(Contains(place.at("contains"), most + 1, None),)))


def _of_objects(place: Place) -> Iterator[Forms]:
    for name in keywords.names_at(place, "required"):
        yield _rewritten(place, f"required {name}", {"type": "object", "properties": {name: False}})
    for name, inner in place.map_at("properties").items():
        broken = Object((name,), frozenset({name}), (keywords.member(name, _not(inner)),))
        yield only("object", broken)
    if place.schema.get("additionalProperties", True) not in (True, {}):
        why = "it stands inside not, if or an overlapping oneOf; use anyOf or leave it out"
        raise UnsupportedError(place.path, "additionalProperties", why)
    for name, others in place.schema.get("dependentRequired", {}).items():
        for other in others:
            schema = {"type": "object", "required": [name], "properties": {other: False}}
            yield _rewritten(place, f"dependentRequired {name} {other}", schema)
