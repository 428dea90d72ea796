"""Folders of the workbench: the learner's data, and caches."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from platformdirs import user_cache_path, user_data_path

from prep_common.text import shown

_PROBE_BYTES = 1 << 16
"""More than SQLite writes beside a file to open it."""


def data_dir() -> Path:
    """Return the folder of the learner's state and settings. `PREP_HOME` overrides it."""
    return _named_by("PREP_HOME") or user_data_path("prep", appauthor=False).absolute()


def cache_dir() -> Path:
    """Return the folder of files that can be recomputed: results of experiments, verdicts."""
    if home := _named_by("PREP_HOME"):
        return home / "cache"
    return _named_by("PREP_CACHE") or user_cache_path("prep", appauthor=False)


def built_dir() -> Path:
    """Return the folder of what is made of the program's own files, the same for all learners: compiled kernels, parsed
    YAML.

    `PREP_CACHE` overrides it. Raises RuntimeError for a user without a home.
    """
    if root := _named_by("PREP_CACHE"):
        return root
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prep"


def expanded(name: str) -> Path:
    """Return a user's path with `~` replaced. Raises ValueError for a name that the system cannot look up."""
    try:
        path = Path(name).expanduser()
        path.exists()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # too long, not Unicode, or the home of an unknown user
        raise ValueError(f"{shown(name)} cannot be looked up: {error}") from None
    return path


def _named_by(variable: str) -> Path | None:
    """Return the folder that a variable names, None if it names none.

    A relative one is made absolute in the environment too: processes that this one starts may run in other folders.
    """
    if not (folder := os.environ.get(variable)):
        return None
    if not os.path.isabs(folder):
        folder = os.environ[variable] = os.path.abspath(folder)
    return Path(folder)


def state_path() -> Path:
    """Return the file of the learner's state."""
    return data_dir() / "state.sqlite3"


def backup_folder(state_file: Path) -> Path:
    """Return the folder of the backups of a state file, beside it."""
    return state_file.parent / "backups"


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing, even with concurrent writers. Raises OSError.

    A link keeps its place, and the file that it names is written. A device or pipe is written as it is.
    """
    if is_stream(path):
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for links in a circle
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Return whether a path names a device or pipe, such as /dev/stdout: links below /proc name no file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def why_unwritable(folder: Path) -> str:
    """Return why no file can be written in a folder, such as "No space left on device"; "" if one can."""
    try:
        with NamedTemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""
