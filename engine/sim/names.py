"""Look up a name, or suggest the closest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from engine.config import ConfigError

T = TypeVar("T")


def look_up(kind: str, name: str, things: Mapping[str, T], *, shown: Sequence[str] | None = None) -> T:
    """Return `things[name]`, ignoring case. Raises ConfigError with the closest name and the list."""
    found = things.get(name.lower())
    if found is not None:
        return found
    names = list(shown if shown is not None else things)
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(f"unknown {kind} {name!r}: {hint}There are {', '.join(names)}")
