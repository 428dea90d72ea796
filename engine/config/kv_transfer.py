"""KV-connector settings (`kv_transfer_config`), validated.

Names are vLLM's (vllm/config/kv_transfer.py). One default differs: KV that cannot be loaded is recomputed, where
vLLM ends the request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from engine.config.errors import ConfigError
from engine.config.settings import parse_settings

KVRole = Literal["kv_producer", "kv_consumer", "kv_both"]
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_POLICIES = ("recompute", "fail")


@dataclass(frozen=True)
class KVTransferConfig:
    """One connector, and the role of this engine."""

    kv_connector: str
    """SharedMemoryConnector, TCPConnector, DiskConnector, or your class as `package.module:Class`."""
    kv_role: KVRole = "kv_both"
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    """Settings of this connector: the fields of its options dataclass."""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    """Recompute the KV that a request could not load, or end the request with an error."""

    def __post_init__(self) -> None:
        if not isinstance(self.kv_connector, str) or not self.kv_connector:
            raise ConfigError(
                "kv_transfer_config needs kv_connector: SharedMemoryConnector, TCPConnector or a dotted path "
                f"'package.module:Class'; got {self.kv_connector!r}"
            )
        for name, choices in (("kv_role", _ROLES), ("kv_load_failure_policy", _POLICIES)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if not isinstance(self.kv_connector_extra_config, dict):
            raise ConfigError(
                f"kv_connector_extra_config must be a dict, got {self.kv_connector_extra_config!r}"
            )

    @property
    def is_producer(self) -> bool:
        """Whether finished requests offer their KV to other engines."""
        return self.kv_role != "kv_consumer"

    @property
    def is_consumer(self) -> bool:
        """Whether requests may start with KV of other engines."""
        return self.kv_role != "kv_producer"

    @classmethod
    def from_args(cls, value: dict[str, Any] | str | None) -> KVTransferConfig | None:
        """Parse a dict or its JSON; None stays None."""
        if value is None:
            return None
        example = '{"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both"}'
        value = parse_settings("kv_transfer_config", value, cls, example)
        return cls(**{"kv_connector": "", **value})
