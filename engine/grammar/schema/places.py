"""Places in a JSON schema, and the references between them.

    {"$id": "/order", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"$anchor": "count"}}}

    Place("#/properties/a")  --$ref "#/$defs/n", "#count" or "/order#count"-->  Place("#/$defs/n")

A schema with `$id` is a resource: references inside it start from it. `$schema` of a resource chooses its draft;
without one, a schema may use the keywords of all drafts that do not contradict each other.

Source: JSON Schema 2020-12 core, sections 8.2 and 9; draft 7 core, section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from engine.core.grammar_protocol import GrammarError

ONE_SCHEMA = (
    "additionalItems additionalProperties contains else if items not propertyNames then unevaluatedItems "
    "unevaluatedProperties"
).split()
LIST_OF_SCHEMAS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
MAP_OF_SCHEMAS = (
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
)
OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")  # `$ref` hides every keyword beside it


class SchemaError(GrammarError):
    """A schema that is invalid, or that no backend can enforce."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"JSON schema at {path}: {what}")


class UnsupportedError(SchemaError):
    """A keyword that limits values, in a way that no backend enforces."""

    def __init__(self, path: str, keyword: str, why: str) -> None:
        super().__init__(path, f"{keyword!r} is not supported by any backend (dfa, xgrammar): {why}")


@dataclass(frozen=True)
class Place:
    """A schema and where it stands. Two places are equal if they have the same path."""

    path: str
    schema: Any = field(compare=False)
    resource: str = field(default="", compare=False)  # `$id` of the resource, absolute where it is
    is_old: bool | None = field(default=None, compare=False)  # Draft 7 or older; None: no `$schema` says

    def at(self, *keys: str | int) -> Place:
        """Return the schema inside this one that the keys lead to."""
        schema, path = self.schema, self.path
        for key in keys:
            schema, path = schema[key], f"{path}/{key}"
        return _entered(Place(path, schema, self.resource, self.is_old))

    def all_at(self, keyword: str) -> list[Place]:
        """Return the schemas of a keyword whose value is a list of schemas."""
        schemas = self.schema[keyword]
        if not isinstance(schemas, list) or not schemas:
            raise SchemaError(f"{self.path}/{keyword}", f"must be a list of schemas, got {schemas!r}")
        return [self.at(keyword, index) for index in range(len(schemas))]

    def map_at(self, keyword: str) -> dict[str, Place]:
        """Return the schemas of a keyword whose value is an object of schemas; empty without the keyword."""
        schemas = self.schema.get(keyword, {})
        if not isinstance(schemas, Mapping):
            raise SchemaError(f"{self.path}/{keyword}", f"must be an object of schemas, got {schemas!r}")
        return {name: self.at(keyword, name) for name in schemas}

    def made(self, name: str, schema: Any) -> Place:
        """Return a schema that a keyword of this one amounts to. name: distinguishes it from others made here."""
        return Place(f"{self.path}/{name}", schema, self.resource, self.is_old)


def _entered(place: Place) -> Place:
    """Return the place as the root of a resource, if its schema has an `$id`."""
    schema = place.schema
    if not isinstance(schema, Mapping):
        return place
    is_old = place.is_old
    if isinstance(draft := schema.get("$schema"), str):
        is_old = any(name in draft for name in OLD_DRAFTS)
    resource = place.resource
    name = schema.get("$id")
    if isinstance(name, str) and not name.startswith("#") and not (is_old and "$ref" in schema):
        resource = urldefrag(_joined(resource, name))[0]
    return Place(place.path, schema, resource, is_old)


def _joined(base: str, reference: str) -> str:
    return base + reference if reference.startswith("#") else urljoin(base, reference)


class References:
    """All schemas that a reference can name, found once by a walk over the root schema."""

    def __init__(self, root: Any) -> None:
        self.root = _entered(Place("#", root))
        self._resources: dict[str, Place] = {}
        self._anchors: dict[str, Place] = {}
        self.has_unevaluated = False
        """Whether `unevaluatedProperties` or `unevaluatedItems` stands somewhere."""
        self._learn(self.root)
        self._resources.setdefault(self.root.resource, self.root)
        self._resources.setdefault("", self.root)

    def _learn(self, place: Place) -> None:
        schema = place.schema
        if not isinstance(schema, Mapping):
            return
        self.has_unevaluated |= not schema.keys().isdisjoint(("unevaluatedProperties", "unevaluatedItems"))
        name, anchor = schema.get("$id"), schema.get("$anchor")
        if isinstance(name, str) and not (place.is_old and "$ref" in schema):
            if name.startswith("#"):  # an anchor, in draft 7
                anchor = name[1:]
            else:
                known = self._resources.setdefault(place.resource, place)
                if known != place:
                    raise SchemaError(
                        place.path, f"$id {name!r} is also that of {known.path}; give each its own"
                    )
        if isinstance(anchor, str):
            self._anchors.setdefault(f"{place.resource}#{anchor}", place)
        for inner in _subschemas(place):
            self._learn(inner)

    def resolve(self, place: Place, keyword: str = "$ref") -> Place:
        """Return the schema that `$ref` of a place names. Raises SchemaError if it is not in this document."""
        reference, path = place.schema[keyword], f"{place.path}/{keyword}"
        if not isinstance(reference, str):
            raise SchemaError(path, f"must be text, got {reference!r}")
        if place.is_old is None and place.path != "#" and isinstance(place.schema.get("$id"), str):
            why = (
                "beside $id it names one schema in draft 7 and another in 2020-12; say which draft in $schema"
            )
            raise UnsupportedError(place.path, keyword, why)
        uri, fragment = urldefrag(_joined(place.resource, reference))
        if (anchored := self._anchors.get(f"{uri}#{fragment}")) is not None:
            return anchored
        target = self._resources.get(uri)
        if target is None:
            why = f"{reference} is not in this schema, and references are not fetched; put it into $defs"
            raise UnsupportedError(place.path, keyword, why)
        for part in unquote(fragment).split("/")[1:] if fragment.startswith("/") else []:
            key = part.replace("~1", "/").replace("~0", "~")
            here = target.schema
            if isinstance(here, list) and key.isdigit() and int(key) < len(here):
                target = target.at(int(key))
            elif isinstance(here, Mapping) and key in here:
                target = target.at(key)
            else:
                raise SchemaError(
                    path, f"{reference} is not in this schema; put it there or correct the name"
                )
        if fragment and not fragment.startswith("/"):
            raise SchemaError(path, f"{reference} is not in this schema; put it there or correct the name")
        return target


def _subschemas(place: Place) -> Iterator[Place]:
    """Return the schemas directly inside a schema; values of unknown keywords are not schemas."""
    schema = place.schema
    for keyword in ONE_SCHEMA:
        if isinstance(schema.get(keyword), Mapping):
            yield place.at(keyword)
    for keyword in LIST_OF_SCHEMAS:
        if isinstance(schema.get(keyword), list):
            yield from (place.at(keyword, index) for index in range(len(schema[keyword])))
    for keyword in MAP_OF_SCHEMAS:
        if isinstance(schema.get(keyword), Mapping):
            yield from (place.at(keyword, name) for name in schema[keyword])
