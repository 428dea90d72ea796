"""Describe the engine in a trace, as JSON: model, settings, machine, code revision and sampling parameters."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.sampling_params import SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.core.scheduler import Scheduler


def trace_header(config: EngineConfig) -> dict[str, Any]:
    """The header of an engine's trace: model, settings and code revision."""
    return {
        "model": config.model.model,
        "fingerprint": config.model.fingerprint,
        "config": {
            "scheduler": plain(config.scheduler),
            "cache": plain(config.cache),
            "args": {name: plain(value) for name, value in config.asked.items()},
        },
        "seed": config.seed,
        "code_rev": code_revision(),
    }


def settings_of(scheduler: Scheduler) -> dict[str, Any]:
    """A scheduler's settings, as far as it has them: enough to run it again."""
    names = {"scheduler": "config", "cache": "cache_config"}
    parts = {name: getattr(scheduler, attribute, None) for name, attribute in names.items()}
    return {name: plain(part) for name, part in parts.items() if is_dataclass(part)}


def class_path(cls: type) -> str:
    """The importable name of a class, `package.module:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def code_revision() -> str | None:
    """The commit of this checkout, with a + if files differ from it; None outside a checkout."""
    import subprocess  # slow to import, and only a traced engine needs it

    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always"]
    command += ["--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def machine() -> str:
    """Operating system, processor kind, number of cores and Python version."""
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {version}"


def changed_fields(params: SamplingParams) -> dict[str, Any]:
    """The sampling parameters that differ from their defaults, as JSON values."""
    values = {name: (getattr(params, name), default) for name, default in _default_fields().items()}
    return {name: plain(value) for name, (value, default) in values.items() if value != default}


@cache
def _default_fields() -> dict[str, Any]:
    """The defaults after validation, which changes some of them."""
    params = SamplingParams()
    return {f.name: getattr(params, f.name) for f in fields(params) if not f.name.startswith("_")}


def plain(value: Any) -> Any:
    """Convert a value for JSON; an object without a JSON form becomes its name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    if isinstance(value, StructuredOutputsParams):
        return {value.kind: plain(getattr(value, value.kind))}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return getattr(value, "__qualname__", str(value))
