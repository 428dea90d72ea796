"""Errors for settings that cannot work."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that cannot work; the message names it, the reason and a remedy."""


def require_at_least(least: int, **settings: int) -> None:
    """Raise ConfigError for the first of `settings` below `least`."""
    for name, value in settings.items():
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
