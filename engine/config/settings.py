"""Errors of settings, and parsers of settings that are objects or name a class of the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from os import PathLike
from types import UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from prep_common.dotted_path import load_object
from prep_common.names import unknown_name
from prep_common.text import shown


class ConfigError(ValueError):
    """A setting that cannot work; the message names it, the reason and a remedy."""


class InvalidRequestError(ValueError):
    """A request that cannot be served. Nothing was started."""


def require_at_least(least: int, **settings: int) -> None:
    """Raise ConfigError for the first of `settings` below `least`."""
    for name, value in settings.items():
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def require_one_of(choices: tuple[Any, ...], remedy: str = "", **settings: Any) -> None:
    """Raise ConfigError for the first of `settings` that is not one of `choices`."""
    for name, value in settings.items():
        if value not in choices:
            known = ", ".join(str(choice) for choice in choices if choice is not None)
            raise ConfigError(f"{name} must be one of {known}, got {shown(value)}{remedy}")


def check_names(given: Mapping[str, Any], config: type, problem: str, where: str = "") -> None:
    """Raise ConfigError for the first key that is no field of the dataclass `config`, see `unknown_name`."""
    known = [field.name for field in fields(config)]
    for name in given:
        if name not in known:
            raise ConfigError(unknown_name(problem, name, known, where))


def check_types(settings: Any, owner: str = "") -> None:
    """Raise ConfigError for the first field of a dataclass whose value is not of its annotated type.

    owner: the engine argument that holds the fields, for the message. For a field with choices (Literal) only their
    common type is checked: the field's own check knows the choices.
    """
    kind: type = type(settings)
    for name, hint in _hints(kind).items():
        if not _fits(value := getattr(settings, name), hint):
            field_name = f"{owner}: {name}" if owner else name
            raise ConfigError(f"{field_name} must be {_described(hint)}, got {shown(value)}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: hint for name, hint in get_type_hints(kind).items() if name in names}


_TYPES: dict[Any, tuple[type | tuple[type, ...], str]] = {
    bool: (bool, "true or false"),
    int: (int, "an integer"),
    float: ((int, float), "a finite number"),
    str: (str, "text"),
    dict: (dict, "a dict with names as keys"),
    list: (list, "a list"),
    type: (type, "a class"),
    type(None): (type(None), "None"),
}


def _fits(value: Any, hint: Any) -> bool:
    kinds = _alternatives(hint)
    for kind in kinds:
        expected, _ = _TYPES.get(kind, (object, ""))
        is_right = isinstance(value, expected) and (kind is bool or not isinstance(value, bool))
        if (kind is str and isinstance(value, PathLike)) or (kind is list and isinstance(value, tuple)):
            is_right = True
        if kind is float and is_right:
            is_right = abs(value) < 2**63  # neither infinite nor NaN
        if kind is dict and is_right:
            is_right = all(isinstance(key, str) for key in value)
        if is_right:
            return True
    return False


def _described(hint: Any) -> str:
    return " or ".join(_TYPES[kind][1] for kind in _alternatives(hint) if kind in _TYPES)


def _alternatives(hint: Any) -> list[Any]:
    """Return the classes of a union, without their parameters; that of the choices of a Literal."""
    if get_origin(hint) in (Union, UnionType):
        return [kind for arg in get_args(hint) for kind in _alternatives(arg)]
    if get_origin(hint) is Literal:
        return list(dict.fromkeys(type(choice) for choice in get_args(hint)))
    return [get_origin(hint) or hint]


class ObjectSettings:
    """Base of a dataclass that a user gives as a dict or its JSON."""

    argument: ClassVar[str]
    """Name of the engine argument, for messages."""
    example: ClassVar[str]

    @classmethod
    def read(cls, value: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return the keys of `value`; each must be a field of this class."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                message = f"{cls.argument} is not valid JSON: {error}; for example {cls.example}"
                raise ConfigError(message) from None
        if not isinstance(value, Mapping):
            raise ConfigError(f"{cls.argument} must be like {cls.example}, got {shown(value)}")
        check_names(value, cls, f"{cls.argument} has an unknown key")
        return dict(value)

    @classmethod
    def from_args(cls, value: Mapping[str, Any] | str | None) -> Self | None:
        """Parse a dict or its JSON; None stays None."""
        return None if value is None else cls(**cls.read(value))


def load_class(spec: str | type, setting: str, methods: tuple[str, ...] = (), protocol: str = "") -> Any:
    """Return the class that a setting gives as itself or as a path `package.module:Class`.

    Raises ConfigError if it cannot be imported or lacks one of the methods of `protocol`, a file to read.
    """
    try:
        loaded = load_object(spec) if isinstance(spec, str) else spec
    except ImportError as error:
        raise ConfigError(f"{setting} {spec!r} cannot be imported: {error}") from error
    except ValueError:
        raise ConfigError(f"{setting} {spec!r} must look like 'package.module:Class'") from None
    if missing := [method for method in methods if not hasattr(loaded, method)]:
        raise ConfigError(f"{setting} {spec!r} has no {', '.join(missing)}; see {protocol}")
    return loaded
