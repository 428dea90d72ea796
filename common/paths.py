"""Folders of the workbench: the learner's data, and caches."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path, user_data_path


def data_dir() -> Path:
    """Return the folder of the learner's state and settings. `PREP_HOME` overrides it."""
    home = os.environ.get("PREP_HOME")
    return Path(home) if home else user_data_path("prep", appauthor=False)


def cache_dir() -> Path:
    """Return the folder of files that can be recomputed: results of experiments, verdicts."""
    if home := os.environ.get("PREP_HOME"):
        return Path(home) / "cache"
    root = os.environ.get("PREP_CACHE")
    return Path(root) if root else user_cache_path("prep", appauthor=False)


def built_dir() -> Path:
    """Return the folder of what is made of the program's own files, the same for all learners: compiled kernels, parsed
    YAML.

    `PREP_CACHE` overrides it. Raises RuntimeError for a user without a home.
    """
    if root := os.environ.get("PREP_CACHE"):
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prep"


def state_path() -> Path:
    """Return the file of the learner's state."""
    return data_dir().absolute() / "state.sqlite3"


def backup_folder(state_file: Path) -> Path:
    """Return the folder of the backups of a state file, beside it."""
    return state_file.parent / "backups"


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing, even with concurrent writers. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
