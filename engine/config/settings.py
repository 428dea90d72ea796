"""Errors of settings, and parsers of settings that are objects or name a class of the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self

from common.dotted_path import load_object
from common.names import unknown_name


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
            raise ConfigError(f"{name} must be one of {known}, got {value!r}{remedy}")


def check_names(given: Mapping[str, Any], config: type, problem: str, where: str = "") -> None:
    """Raise ConfigError for the first key that is no field of the dataclass `config`, see `unknown_name`."""
    known = [field.name for field in fields(config)]
    for name in given:
        if name not in known:
            raise ConfigError(unknown_name(problem, name, known, where))


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
            except ValueError as error:
                message = f"{cls.argument} is not valid JSON: {error}; for example {cls.example}"
                raise ConfigError(message) from None
        if not isinstance(value, Mapping):
            raise ConfigError(f"{cls.argument} must be like {cls.example}, got {value!r}")
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
        found = load_object(spec) if isinstance(spec, str) else spec
    except ImportError as error:
        raise ConfigError(f"{setting} {spec!r} cannot be imported: {error}") from error
    except ValueError:
        raise ConfigError(f"{setting} {spec!r} must look like 'package.module:Class'") from None
    if missing := [method for method in methods if not hasattr(found, method)]:
        raise ConfigError(f"{setting} {spec!r} has no {', '.join(missing)}; see {protocol}")
    return found
