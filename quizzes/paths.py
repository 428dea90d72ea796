"""Where the workbench keeps its files: what a learner did, and what can be made again."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path, user_data_path


def data_dir() -> Path:
    """What must not be lost: the learner's state, settings. `PREP_HOME` moves it."""
    home = os.environ.get("PREP_HOME")
    return Path(home) if home else user_data_path("prep", appauthor=False)


def cache_dir() -> Path:
    """What can be made again: compiled banks, results of experiments."""
    home = os.environ.get("PREP_HOME")
    return Path(home) / "cache" if home else user_cache_path("prep", appauthor=False)


def write_atomically(path: Path, text: str) -> None:
    """All of it or nothing, also if somebody else writes the same file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
