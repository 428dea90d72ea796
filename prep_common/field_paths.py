"""Follow the path of a key through types: models of pydantic, dataclasses, lists, mappings, unions.

pydantic's errors hold the path of a key, not the names beside it, and in the path also names of its own for the forms
of a union. This module only reads attributes of the types, so it needs no pydantic.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

Location = tuple[int | str, ...]
_BUILT_IN = ("body", "str", "int", "float", "bool", "list", "dict")


class Place(NamedTuple):
    """Facts about a key, from the types."""

    path: Location
    """Its location without the names of forms."""
    siblings: list[str] = []
    """Names allowed in the mapping that holds it."""
    description: str = ""
    """Its field's description: what is allowed, for people."""
    needed: list[str] = []
    """Names that its own value must hold."""


def follow(location: Location, kind: Any) -> Place:
    """Return the facts about a location in data of a kind. kind None: unknown; then only the path."""
    if kind is None:
        names = (part for part in location if isinstance(part, int) or part.isidentifier())
        return Place(tuple(part for part in names if part not in _BUILT_IN))
    forms, path = list(_forms(kind)), list[int | str]()
    siblings, description = list[str](), ""
    for part in location:
        known = {name: field for form in forms for name, field in _fields(form).items()}
        if part in known:
            field = known[str(part)]
            forms, description, siblings = list(_forms(field.kind)), field.description, list(known)
        elif items := [item for form in forms for item in _items(form, part)]:
            forms, description, siblings = items, "", []
        elif known and part == location[-1] and part not in {form.__name__ for form in forms}:
            forms, description, siblings = [], "", list(known)
        else:
            continue
        path.append(part)
    needed = [name for form in forms for name, field in _fields(form).items() if field.is_required]
    return Place(tuple(path), siblings, description, needed)


def places_of(name: str, kind: Any, above: str = "", *, depth: int = 6) -> list[str]:
    """Return the paths of all fields of this name in data of a kind, such as hardware.gpu."""
    if not depth:
        return []
    paths = list[str]()
    for form in _forms(kind):
        for field_name, field in _fields(form).items():
            path = f"{above}.{field_name}".removeprefix(".")
            paths += [path] * (field_name == name) + places_of(name, field.kind, path, depth=depth - 1)
        for item in _items(form, 0):
            paths += places_of(name, item, f"{above}[]", depth=depth - 1)
    return list(dict.fromkeys(paths))


class _FieldType(NamedTuple):
    kind: Any
    is_required: bool
    description: str = ""


def _forms(kind: Any) -> Iterator[Any]:
    """Yield the alternatives of a type."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _forms(get_args(kind)[0])
    elif origin in (Union, types.UnionType):
        for arg in get_args(kind):
            yield from _forms(arg)
    elif kind is not type(None):
        yield kind


def _fields(form: Any) -> dict[str, _FieldType]:
    """Return the fields of a model or a dataclass by the names that data uses."""
    if hasattr(form, "model_fields"):
        return {
            field.alias or name: _FieldType(field.annotation, field.is_required(), field.description or "")
            for name, field in form.model_fields.items()
        }
    if isinstance(form, type) and dataclasses.is_dataclass(form):
        hints = get_type_hints(form)
        return {
            field.name: _FieldType(hints[field.name], _is_required(field))
            for field in dataclasses.fields(form)
        }
    return {}


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _items(form: Any, part: int | str) -> Iterator[Any]:
    """Yield the types of a container's values at a part of a path."""
    origin, arguments = get_origin(form), get_args(form)
    if origin in (list, set, frozenset, tuple) and isinstance(part, int) and arguments:
        yield from _forms(arguments[0])
    elif origin is dict and "[" not in str(part):
        yield from _forms(arguments[1])
