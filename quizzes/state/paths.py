"""Where the state and its copies are."""

from __future__ import annotations

from pathlib import Path

from quizzes.paths import data_dir

FILE_NAME = "state.sqlite3"


def state_path() -> Path:
    return data_dir().absolute() / FILE_NAME


def backup_folder(state_file: Path) -> Path:
    """Beside the state file."""
    return state_file.parent / "backups"
