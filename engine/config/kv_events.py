"""KV-event settings (`kv_events_config`), validated.

Names are vLLM's (vllm/config/kv_events.py) where the same setting exists. Its publisher is a ZeroMQ socket; ours are a
queue and a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config.errors import ConfigError, require_at_least
from engine.config.settings import parse_settings

PUBLISHERS = ("memory", "file")


@dataclass(frozen=True)
class KVEventsConfig:
    """Destination of KV events."""

    publisher: str = "memory"
    """memory: a queue in the engine's process. file: JSON lines."""
    path: str | None = None
    """Path of the file, which must not exist yet."""
    max_queue_size: int = 100_000
    """memory: batches kept for the reader. Beyond it the oldest are dropped, which the reader sees as a gap."""
    enable_kv_cache_events: bool = True
    """False: publish nothing."""

    @classmethod
    def from_args(cls, value: Mapping[str, Any] | str | None) -> KVEventsConfig | None:
        """Parse a dict or its JSON. Returns None if no events are published."""
        if value is None:
            return None
        config = cls(**parse_settings("kv_events_config", value, cls, '{"publisher": "memory"}'))
        return config if config.enable_kv_cache_events else None

    def __post_init__(self) -> None:
        if self.publisher not in PUBLISHERS:
            raise ConfigError(
                f"kv_events_config: publisher must be one of {', '.join(PUBLISHERS)}, got {self.publisher!r}; there is "
                "no network publisher here: read the queue or the file and send it on"
            )
        if not isinstance(self.enable_kv_cache_events, bool):
            raise ConfigError("kv_events_config: enable_kv_cache_events must be true or false")
        if (self.publisher == "file") != isinstance(self.path, str) or self.path == "":
            raise ConfigError(
                f"kv_events_config: publisher 'file' needs a path and no other takes one, got publisher="
                f"{self.publisher!r}, path={self.path!r}"
            )
        require_at_least(1, max_queue_size=self.max_queue_size)
