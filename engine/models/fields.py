"""Typed reading of a checkpoint's config.json."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from engine.config import ConfigError

MOST = {
    "num_hidden_layers": 1024,
    "head_dim": 4096,
    "num_attention_heads": 2**16,
    "hidden_size": 2**20,
    "max_position_embeddings": 2**24,
}
"""Highest value of a count; 2 ** 31 - 1, the largest index of a kernel, for the others. They are beyond any model that
exists, so that a damaged number is refused before memory for it is taken."""
_MOST = 2**31 - 1


class Fields:
    """The fields that are read, with their types. An error names the file, the field, its value and what it can be."""

    def __init__(self, raw: dict[str, Any], source: Path | str) -> None:
        self.raw = raw
        self.source = source
        self.seen: set[str] = set()  # Names that were asked for

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value as it is; `default` if the field is absent or null."""
        self.seen.add(name)
        value = self.raw.get(name)
        return default if value is None else value

    def count(self, name: str) -> int:
        """Return a positive integer."""
        value, most = self.get(name), MOST.get(name, _MOST)
        if type(value) is int and 0 < value <= most:
            return value
        bound = f" of at most {most:,}" if type(value) is int and value > most else ""
        raise self.error(name, f"a positive integer{bound}")

    def optional_count(self, name: str) -> int | None:
        """Return a positive integer, or None if the field is absent, null or 0."""
        return None if self.get(name) is None or self._is_zero(name) else self.count(name)

    def flag(self, name: str) -> bool:
        """Return true or false; false if the field is absent or null."""
        value = self.get(name, default=False)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def number(self, name: str) -> float:
        """Return a positive finite number."""
        if not is_number(value := self.get(name)) or value <= 0:
            raise self.error(name, "a positive number")
        return float(value)

    def counts(self, name: str) -> list[int]:
        """Return a list of integers of at least 0; empty if the field is absent or null."""
        value = self.get(name, default=[])
        if not isinstance(value, list) or any(type(count) is not int or count < 0 for count in value):
            raise self.error(name, "a list of integers")
        return value

    def object(self, name: str) -> dict[str, Any]:
        """Return a JSON object; empty if the field is absent or null."""
        value = self.get(name, default={})
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return value

    def token_ids(self, name: str) -> list[int]:
        """Return the ids of one token or of a list of them; empty if the field is absent or null."""
        value = self.get(name, default=[])
        ids = value if isinstance(value, list) else [value]
        if any(type(token_id) is not int for token_id in ids):
            raise self.error(name, "the id of a token, or a list of ids")
        return ids

    def error(self, name: str, expected: str) -> ConfigError:
        """Return the error for a field whose value is none of `expected`."""
        problem = f"is {short(self.raw[name])}" if name in self.raw else "is missing"
        return ConfigError(
            f"{self.source}: {name!r} {problem}, expected {expected}; correct the file or fetch it again"
        )

    def _is_zero(self, name: str) -> bool:
        return type(self.raw[name]) is int and self.raw[name] == 0


def is_number(value: Any) -> bool:
    """Whether this is a finite number, and no bool."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def short(value: Any, limit: int = 80) -> str:
    """Return `repr`, cut to a limit."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
