"""Parse settings that are objects: a dict or its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from engine.config.errors import ConfigError


def parse_settings(
    argument: str, value: Mapping[str, Any] | str, config: type, example: str
) -> dict[str, Any]:
    """Return the keys of `value`; each must be a field of the dataclass `config`.

    argument, example: name and example of the setting, for the messages of ConfigError.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{argument} is not valid JSON: {error}; for example {example}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{argument} must be like {example}, got {value!r}")
    known = [field.name for field in fields(config)]
    for name in value:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known ones: {', '.join(known)}"
            raise ConfigError(f"{argument} has an unknown key {name!r}; {hint}")
    return dict(value)
