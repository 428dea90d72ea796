"""Where an engine gets KV from, and for whom it keeps some: `EngineArgs.kv_transfer_config`, checked.

Names are vLLM's (vllm/config/kv_transfer.py). One default differs: KV that cannot be loaded is computed, where vLLM
ends the request.
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
    """One connector, and this engine's part in it."""

    kv_connector: str
    """SharedMemoryConnector, TCPConnector, DiskConnector, or a class of yours as `package.module:Class`."""
    kv_role: KVRole = "kv_both"
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    """What only this connector knows: its `options` say what it takes."""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    """What becomes of a request whose KV did not come: it computes the KV itself, or ends with an error."""

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
        """Whether finished requests leave KV for others."""
        return self.kv_role != "kv_consumer"

    @property
    def is_consumer(self) -> bool:
        """Whether requests may start with KV of others."""
        return self.kv_role != "kv_producer"

    @classmethod
    def from_args(cls, value: dict[str, Any] | str | None) -> KVTransferConfig | None:
        """`kv_transfer_config` as people write it: a dict or its JSON. None stays None."""
        if value is None:
            return None
        example = '{"kv_connector": "SharedMemoryConnector", "kv_role": "kv_both"}'
        value = parse_settings("kv_transfer_config", value, cls, example)
        return cls(**{"kv_connector": "", **value})
