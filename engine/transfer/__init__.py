"""KV on its way between engines: connectors that fill the seam of `engine/core/connector.py`. See README.md."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from engine.config import ConfigError, KVTransferConfig

CONNECTORS = {
    "DiskConnector": "engine.transfer.disk:DiskConnector",
    "SharedMemoryConnector": "engine.transfer.shared_memory:SharedMemoryConnector",
    "TCPConnector": "engine.transfer.tcp:TCPConnector",
}


def connector_class(config: KVTransferConfig) -> Any:
    """The class that `kv_connector` names, its extra settings checked."""
    path = CONNECTORS.get(config.kv_connector, config.kv_connector)
    module_name, separator, class_name = path.partition(":")
    if not separator:
        raise ConfigError(
            f"unknown kv_connector {config.kv_connector!r}; choose {', '.join(CONNECTORS)} or give a class of "
            "yours as 'package.module:Class'"
        )
    try:
        cls = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"kv_connector {config.kv_connector!r} cannot be imported: {error}") from error
    missing = [name for name in ("check_config", "make_worker", "make_scheduler") if not hasattr(cls, name)]
    if missing:
        raise ConfigError(
            f"kv_connector {config.kv_connector!r} has no {', '.join(missing)}; see KVConnector in "
            "engine/core/connector.py"
        )
    cls.check_config(config)
    return cls
