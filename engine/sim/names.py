"""Finding a named thing, or saying what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from engine.config import ConfigError

T = TypeVar("T")


def look_up(kind: str, name: str, things: Mapping[str, T], *, shown: Sequence[str] | None = None) -> T:
    """`things[name]`, whatever its case; ConfigError with the closest name and the list if it is unknown."""
    found = things.get(name.lower())
    if found is not None:
        return found
    names = list(shown if shown is not None else things)
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(f"unknown {kind} {name!r}: {hint}There are {', '.join(names)}")
