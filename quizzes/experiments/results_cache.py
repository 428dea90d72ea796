"""Cache of results by experiment, arguments and source.

The key includes the state of `engine/`, `kernels/` and the experiments, so an edited engine runs them again. Measured
results also depend on the machine and expire after one day.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from functools import cache
from pathlib import Path
from typing import Any

from prep_common.paths import cache_dir, write_atomically
from quizzes.experiments.registry import Experiment

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
_SUFFIXES = {".py", ".cpp", ".h", ".cu", ".cuh", ".json", ".jinja", ".safetensors"}
MEASURED_FOR_SECONDS = 86_400
MAX_RESULTS = 5_000


def key_of(experiment: Experiment, args: dict[str, Any], seed: int) -> str:
    parts: list[Any] = [experiment.name, experiment.version, args, seed, source_revision()]
    if experiment.determinism == "statistical":
        parts += [platform.node(), platform.processor(), os.cpu_count()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def read(experiment: Experiment, key: str) -> dict[str, Any] | None:
    """Return the result, or None if it is missing, damaged or expired."""
    path = _path(key)
    try:
        if (
            experiment.determinism == "statistical"
            and time.time() - path.stat().st_mtime > MEASURED_FOR_SECONDS
        ):
            return None
        kept = json.loads(path.read_text(encoding="utf-8"))
        return dict(kept["result"]) if kept["name"] == experiment.name else None
    except OSError:
        return None
    except (ValueError, KeyError, TypeError):
        logger.warning("%s is damaged; the experiment runs again", path)
        return None


def write(experiment: Experiment, key: str, result: dict[str, Any], seconds: float = 0.0) -> None:
    """Keep a result, and how long its run took on this machine."""
    try:
        write_atomically(_path(key), json.dumps({"name": experiment.name, "result": result}))
        write_atomically(_time_path(experiment.name), f"{seconds:.3f}")
        _forget_oldest()
    except OSError:
        pass  # a cache that cannot be written only costs time


def last_seconds(name: str) -> float | None:
    """Return how long the last run of an experiment took on this machine; None before its first."""
    try:
        return float(_time_path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@cache
def source_revision() -> str:
    """Return a hash that changes when a file of the engine, the kernels or the experiments changes."""
    digest = hashlib.sha1()
    for folder in ("engine", "kernels", "quizzes/experiments"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in _SUFFIXES and "__pycache__" not in path.parts:
                stat = path.stat()
                digest.update(f"{path.relative_to(ROOT)}\0{stat.st_mtime_ns}\0{stat.st_size}\n".encode())
    return digest.hexdigest()


def _path(key: str) -> Path:
    return cache_dir() / "results" / key[:2] / f"{key[2:]}.json"


def _time_path(name: str) -> Path:
    return cache_dir() / "run_seconds" / f"{name}.txt"


def _forget_oldest() -> None:
    """Delete the oldest results; runs about once in 200 writes."""
    if hash(time.monotonic_ns()) % 200:
        return
    files = sorted((cache_dir() / "results").glob("*/*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - MAX_RESULTS)]:
        path.unlink(missing_ok=True)
