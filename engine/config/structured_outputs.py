"""Settings of structured outputs (`structured_outputs_config`), validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config.errors import ConfigError
from engine.config.settings import parse_settings

BACKENDS = ("auto", "xgrammar", "dfa")


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """vLLM's `structured_outputs_config`."""

    backend: str = "auto"
    """dfa: our own automata, for regular languages. xgrammar: the library, for JSON of any depth and
    context-free grammars. auto: dfa for a regex or a choice; for the rest xgrammar if it is installed, else dfa."""
    disable_any_whitespace: bool = False
    """Allow JSON only as `json.dumps` writes it."""

    @classmethod
    def from_args(cls, value: Mapping[str, Any] | str | None) -> StructuredOutputsConfig:
        """Parse a dict, its JSON, or None."""
        if value is None:
            return cls()
        return cls(**parse_settings("structured_outputs_config", value, cls, '{"backend": "dfa"}'))

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigError(
                f"structured_outputs_config: backend must be one of {', '.join(BACKENDS)}, got {self.backend!r}"
            )
        if not isinstance(self.disable_any_whitespace, bool):
            raise ConfigError("structured_outputs_config: disable_any_whitespace must be true or false")
