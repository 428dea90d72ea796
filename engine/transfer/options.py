"""Validate `kv_connector_extra_config` against a connector's options."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from math import isfinite
from typing import Any, TypeVar

from engine.config import ConfigError, KVTransferConfig

Options = TypeVar("Options")


def parse_options(cls: type[Options], config: KVTransferConfig) -> Options:
    """Parse the extra settings to a dataclass. Raises ConfigError for unknown names and wrong types."""
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for name, value in config.kv_connector_extra_config.items():
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}"
            raise ConfigError(f"{config.kv_connector} has no setting {name!r}; {hint}")
        if not _fits(value, str(known[name].type)):
            raise ConfigError(f"{config.kv_connector}: {name} must be {known[name].type}, got {value!r}")
    try:
        return cls(**config.kv_connector_extra_config)
    except TypeError as error:
        raise ConfigError(
            f"{config.kv_connector} needs more in kv_connector_extra_config: {error}"
        ) from error


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return False
    if kind == "float":
        return isinstance(value, (int, float)) and isfinite(value)
    return isinstance(value, {"int": int, "str": str}[kind])


def require_positive(config: KVTransferConfig, **settings: float) -> None:
    """Raise ConfigError for the first of `settings` that is not above zero."""
    for name, value in settings.items():
        if value <= 0:
            raise ConfigError(f"{config.kv_connector}: {name} must be greater than 0, got {value}")
