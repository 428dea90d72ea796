"""Expand JSON schemas to forms: references resolved, schemas that apply at once merged, types apart.

    {"type": "object", "allOf": [A, B], "oneOf": [C, D]}      both(own keywords, A, B, either(C, D))

`not` needs the values that a schema rejects: those that one of its keywords rejects. Most keywords have an opposite
(`minimum` has `exclusiveMaximum`); a schema with another one cannot be negated and is refused.

`oneOf` is `anyOf` if no value fits two of its schemas, which is proved from their forms; else each option excludes the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.grammar.schema import keywords
from engine.grammar.schema.negation import opposites
from engine.grammar.schema.places import Place, References, SchemaError, UnsupportedError
from engine.grammar.schema.shapes import (
    ALL,
    NOTHING,
    Array,
    Forms,
    Members,
    Names,
    Object,
    Places,
    both,
    either,
    together,
)

CHOICES = ("anyOf", "oneOf", "if", "dependentRequired", "dependentSchemas", "not", "enum")
MAX_SHAPES = 256
"""Shapes of one type in one schema. Choices at once multiply: three `anyOf` of 8 schemas each have 512."""

MAX_DEPTH = 8
"""Levels of an option of `oneOf` that are searched for what cannot be negated."""
MAX_COMBINED = 4
"""Options of `anyOf` whose combinations are told apart for `unevaluatedProperties` and `unevaluatedItems`."""


class Expander:
    """Forms of the schemas of one document."""

    def __init__(self, root: Any) -> None:
        self.references = References(root)
        self.is_apart: Callable[[Places], bool] = lambda _: False
        """Whether surely no value satisfies these schemas at once. Set by the compiler, which knows how to tell."""
        self._known: dict[tuple[str, bool, bool], Forms] = {}
        self._open: list[tuple[str, bool, bool]] = []

    @property
    def root(self) -> Place:
        return self.references.root

    def all_of(self, places: Places) -> Forms:
        """Return the values that satisfy all these schemas."""
        forms = ALL
        for place in places:
            forms = self._both(place, forms, self.positive(place))
        return forms

    def positive(self, place: Place, counts: bool = True) -> Forms:
        """Return the values that a schema accepts. counts: see `Members`."""
        return self._once(place, True, counts)

    def negative(self, place: Place) -> Forms:
        """Return the values that a schema rejects."""
        return self._once(place, False, False)

    def _once(self, place: Place, accepts: bool, counts: bool) -> Forms:
        key = place.path, accepts, counts
        if key in self._known:
            return self._known[key]
        if isinstance(place.schema, bool):
            return ALL if place.schema is accepts else NOTHING
        if not isinstance(place.schema, Mapping):
            raise SchemaError(place.path, f"a schema is an object, true or false, not {place.schema!r}")
        if key in self._open:
            raise SchemaError(
                place.path, "its references lead back to it and to nothing else; give it a type"
            )
        self._open.append(key)
        try:
            forms = self._positive(place, counts) if accepts else self._negative(place)
        finally:
            self._open.pop()
        self._known[key] = forms
        return forms

    # Accepted values

    def _positive(self, place: Place, counts: bool) -> Forms:
        schema = place.schema
        keywords.unsupported(place)
        if place.is_old and "$ref" in schema:
            return self.positive(self.references.resolve(place), counts)
        forms = keywords.own_forms(place, counts)
        for part in self._parts(place, counts):
            forms = self._both(place, forms, part)
        if counts:
            for name in ("unevaluatedProperties", "unevaluatedItems"):
                if name in schema:
                    forms = _with_unevaluated(place, name, forms)
        elif {"unevaluatedProperties", "unevaluatedItems"} & schema.keys():
            raise UnsupportedError(
                place.path,
                "unevaluatedProperties",
                "it is inside not, if or oneOf; use anyOf or leave it out",
            )
        return forms

    def _parts(self, place: Place, counts: bool) -> list[Forms]:
        """Return the forms of each keyword that combines schemas."""
        schema = place.schema
        parts: list[Forms] = []
        if "$ref" in schema:
            parts.append(self.positive(self.references.resolve(place), counts))
        if "const" in schema:
            parts.append(keywords.constant(place, "const", schema["const"]))
        if "enum" in schema:
            parts.append(keywords.constants(place, "enum", schema["enum"]))
        if "allOf" in schema:
            parts += [self.positive(inner, counts) for inner in place.all_at("allOf")]
        if "anyOf" in schema:
            parts.append(self._any_of(place, counts))
        if "oneOf" in schema:
            parts.append(self._one_of(place, counts))
        if "not" in schema:
            parts.append(self.negative(place.at("not")))
        if "if" in schema and {"then", "else"} & schema.keys():
            parts.append(either(self._branches(place, counts)))
        elif "if" in schema and self.references.has_unevaluated:  # it describes what it accepts
            parts.append(either([self.positive(place.at("if"), counts), ALL]))
        return parts + self._dependents(place, counts)

    def _any_of(self, place: Place, counts: bool) -> Forms:
        """Return the forms of the options; if members may be left undescribed, of several options at once, too."""
        options = [self.positive(inner, counts) for inner in place.all_at("anyOf")]
        if not (counts and self.references.has_unevaluated and len(options) <= MAX_COMBINED):
            return either(options)
        several: list[Forms] = []
        for option in options:
            several += [option, *(self._both(place, forms, option) for forms in several)]
        return either(several)

    def _branches(self, place: Place, counts: bool) -> list[Forms]:
        condition = place.at("if")
        branches = [self.positive(condition, counts), self.negative(condition)]
        for index, name in enumerate(("then", "else")):
            if name in place.schema:
                branches[index] = self._both(place, branches[index], self.positive(place.at(name), counts))
        return branches

    def _one_of(self, place: Place, counts: bool) -> Forms:
        options = place.all_at("oneOf")
        several = []
        tag = _tag(place)
        for option in options:
            forms = self._both(place, self.positive(option, counts), self.all_of(tag))
            for other in options:
                if other is not option and not self.is_apart(together((option,), (other,), tag)):
                    forms = self._both(place, forms, self._outside(place, option, other))
            several.append(forms)
        return either(several)

    def _outside(self, place: Place, option: Place, other: Place) -> Forms:
        """Return the values that another option rejects; if it cannot be negated, those without what it requires."""
        if not self._has_opposite(other):
            forms = self.positive(other, False)
            required = [frozenset(shape.required) for shape in forms.get("object", ())]
            own = [shape.required for shape in self.positive(option, False).get("object", ())]
            names = sorted(frozenset.intersection(*required).difference(*own)) if required else []
            if names and forms.keys() == {"object"}:
                return self._without(place, names[0])
        return self.negative(other)

    def _has_opposite(self, place: Place) -> bool:
        """Whether a schema can be negated, the schemas in it too, to a depth of MAX_DEPTH."""
        level, seen = {place.path: place}, set[str]()
        for _ in range(MAX_DEPTH):
            try:
                inner = [schema for outer in level.values() for schema in self._inside(outer)]
            except UnsupportedError:
                return False
            seen |= level.keys()
            level = {schema.path: schema for schema in inner if schema.path not in seen}
        return True

    def _inside(self, place: Place) -> list[Place]:
        """Return the schemas in a schema. Raises UnsupportedError if it cannot be negated itself."""
        if not isinstance(place.schema, Mapping):
            return []
        self.negative(place)
        inside = [self.references.resolve(place)] if "$ref" in place.schema else []
        inside += [place.at("properties", name) for name in place.schema.get("properties", ())]
        inside += [place.at(name) for name in ("items", "additionalProperties") if name in place.schema]
        for name in ("allOf", "anyOf", "oneOf"):
            inside += place.all_at(name) if name in place.schema else []
        return inside

    def _without(self, place: Place, name: str) -> Forms:
        return self.positive(place.made(f"without {name}", {"properties": {name: False}}), False)

    def _dependents(self, place: Place, counts: bool) -> list[Forms]:
        """Return the forms of what a property demands of the others: it is absent, or the demand is met."""
        demands: list[tuple[str, Forms]] = []
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            asked = place.schema.get(keyword, {})
            if not isinstance(asked, Mapping):
                raise SchemaError(f"{place.path}/{keyword}", f"must be an object, got {asked!r}")
            for name, demand in asked.items():
                if isinstance(demand, list):
                    here = place.made(f"{keyword}/{name}", {"required": demand})
                    demands.append((name, self.positive(here, False)))
                else:
                    demands.append((name, self.positive(place.at(keyword, name), counts)))
        parts = []
        for name, forms in demands:
            absent = self._without(place, name)
            present = self.positive(place.made(f"with {name}", {"required": [name]}), False)
            parts.append(either([absent, both(present, forms)]))
        return parts

    # Rejected values

    def _negative(self, place: Place) -> Forms:
        schema = place.schema
        if "$ref" in schema and place.is_old:
            return self.negative(self.references.resolve(place))
        several: list[Forms] = list(opposites(place))
        if "$ref" in schema:
            several.append(self.negative(self.references.resolve(place)))
        for name in ("const", "enum"):
            if name in schema:
                several.append(self._none_of(place, name))
        if "allOf" in schema:
            several += [self.negative(inner) for inner in place.all_at("allOf")]
        if "anyOf" in schema:
            several.append(self._all_rejected(place, place.all_at("anyOf")))
        if "oneOf" in schema:
            options = place.all_at("oneOf")
            several.append(self._all_rejected(place, options))
            for index, option in enumerate(options):
                for other in options[:index]:
                    two = self._both(place, self.positive(option, False), self.positive(other, False))
                    several.append(two)
        if "not" in schema:
            several.append(self.positive(place.at("not"), False))
        if "if" in schema and {"then", "else"} & schema.keys():
            several += self._broken_branches(place)
        return either(several)

    def _all_rejected(self, place: Place, options: list[Place]) -> Forms:
        forms = ALL
        for option in options:
            forms = self._both(place, forms, self.negative(option))
        return forms

    def _broken_branches(self, place: Place) -> list[Forms]:
        condition = place.at("if")
        sides = {"then": self.positive(condition, False), "else": self.negative(condition)}
        return [
            self._both(place, forms, self.negative(place.at(name)))
            for name, forms in sides.items()
            if name in place.schema
        ]

    def _none_of(self, place: Place, keyword: str) -> Forms:
        """Return all values but those of `const` or `enum`."""
        forms = ALL
        values = [place.schema["const"]] if keyword == "const" else place.schema["enum"]
        keywords.constants(place, keyword, values)
        for index, value in enumerate(values):
            forms = self._both(place, forms, self._other_than(place, f"{keyword}/{index}", value))
        return forms

    def _other_than(self, place: Place, name: str, value: Any) -> Forms:
        if isinstance(value, list):  # as the keywords that describe it
            whole: dict[str, Any] = {"type": "array", "minItems": len(value), "maxItems": len(value)}
            whole |= {"prefixItems": [{"const": item} for item in value]} if value else {}
            return self.negative(place.made(name, whole))
        if isinstance(value, Mapping):
            names = {"type": "object", "required": list(value)}
            whole = {**names, "properties": {key: {"const": inner} for key, inner in value.items()}}
            more = place.made(f"{name}/(more)", {**names, "minProperties": len(value) + 1})
            return either([self.negative(place.made(name, whole)), self.positive(more, False)])
        ((kind, (shape,)),) = keywords.constant(place, name, value).items()
        return {**ALL, kind: keywords.without(shape, f"{place.path}/{name}")}

    def _both(self, place: Place, first: Forms, second: Forms) -> Forms:
        forms = both(first, second)
        if any(len(shapes) > MAX_SHAPES for shapes in forms.values()):
            most = max(map(len, forms.values()))
            keyword = next((name for name in CHOICES if name in place.schema), "allOf")
            why = f"choices multiply to {most:,} forms here, the maximum is {MAX_SHAPES}; use fewer of them at once"
            raise UnsupportedError(place.path, keyword, why)
        return forms


def _tag(place: Place) -> Places:
    """Return the schema that `discriminator` (OpenAPI) adds to each option of `oneOf`: the property must be there.

    pydantic leaves a discriminator with a default out of `required`, but reads no value without it.
    """
    discriminator = place.schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, Mapping) else None
    return (place.made("discriminator", {"required": [name]}),) if isinstance(name, str) else ()


def _with_unevaluated(place: Place, keyword: str, forms: Forms) -> Forms:
    """Return the forms with a schema for all members, or items, that no other keyword of the place describes."""
    value = together((place.at(keyword),))
    kind = "object" if keyword == "unevaluatedProperties" else "array"
    limit = _limited_object if kind == "object" else _limited_array
    shapes = [limit(place, shape, value) for shape in forms.get(kind, ())]
    kept = tuple(shape for shape in shapes if shape is not None)
    return {**{k: s for k, s in forms.items() if k != kind}, **({kind: kept} if kept else {})}


def _limited_object(_: Place, shape: Object, value: Places) -> Object | None:
    described = [members.names for members in shape.members if members.counts]
    if any(names.inverted for names in described):
        return shape  # additionalProperties describes all the rest
    names = frozenset().union(*(names.names for names in described))
    patterns = tuple(dict.fromkeys(pattern for names in described for pattern in names.patterns))
    others = Members(Names(names, patterns, inverted=True), value)
    return shape.merged(Object(members=(others,), says_others=True))


def _limited_array(place: Place, shape: Array, value: Places) -> Array | None:
    if shape.describes_rest:
        return shape
    if shape.contains:
        raise UnsupportedError(
            place.path, "unevaluatedItems", "contains stands beside it; leave one of them out"
        )
    firsts = [f if i < shape.num_described else together(f, value) for i, f in enumerate(shape.firsts)]
    return replace(shape, firsts=tuple(firsts), rest=together(shape.rest, value), describes_rest=True)
