"""Where the state lives: one folder of the user's data, or the one that PREP_HOME names."""

from __future__ import annotations

import os
from pathlib import Path

FILE_NAME = "state.sqlite3"


def home() -> Path:
    """The folder of everything prep keeps for a learner. Not created here."""
    chosen = os.environ.get("PREP_HOME", "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("prep", appauthor=False)


def state_path() -> Path:
    return home() / FILE_NAME


def backup_folder(state_file: Path) -> Path:
    """Beside the state file."""
    return state_file.parent / "backups"
