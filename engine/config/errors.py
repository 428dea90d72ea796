"""How a setting is refused."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that cannot work: says what, why and what to do instead."""


def require_at_least(least: int, **settings: int) -> None:
    """Raise ConfigError, naming the first of `settings` that is less."""
    for name, value in settings.items():
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
