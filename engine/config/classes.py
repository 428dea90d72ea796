"""Settings that name a class of the user's own as `package.module:Class`."""

from __future__ import annotations

from typing import Any

from common.dotted_path import load_object
from engine.config.errors import ConfigError


def load_class(spec: str | type, setting: str, methods: tuple[str, ...] = (), protocol: str = "") -> Any:
    """Return the class that a setting gives as itself or as a dotted path.

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
