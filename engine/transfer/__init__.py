"""KV transfer between engines: connectors for the seam of `engine/core/connector.py`. Start with README.md."""

from __future__ import annotations

from typing import Any

from engine.config import ConfigError, KVTransferConfig
from engine.config.settings import load_class

CONNECTORS = {
    "DiskConnector": "engine.transfer.disk:DiskConnector",
    "SharedMemoryConnector": "engine.transfer.shared_memory:SharedMemoryConnector",
    "TCPConnector": "engine.transfer.tcp:TCPConnector",
}


def connector_class(config: KVTransferConfig) -> Any:
    """Return the class that `kv_connector` names, after validating its extra settings."""
    path = CONNECTORS.get(config.kv_connector, config.kv_connector)
    if ":" not in path:
        raise ConfigError(
            f"unknown kv_connector {config.kv_connector!r}; choose {', '.join(CONNECTORS)} or give a class of "
            "yours as 'package.module:Class'"
        )
    methods = ("check_config", "make_worker", "make_scheduler")
    cls = load_class(path, "kv_connector", methods, "KVConnector in engine/core/connector.py")
    cls.check_config(config)
    return cls
