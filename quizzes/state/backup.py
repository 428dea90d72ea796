"""Copies of the state: one per day, of which seven are kept, and one before each migration."""

import datetime as dt
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from prep_common.paths import backup_folder
from quizzes.state.database import StateUnavailable, connect_to_read

DAILY_KEPT = 7


def copy_to(connection: sqlite3.Connection, target: Path) -> Path:
    """Write a consistent copy, even with concurrent writers. It gets its name only once it is complete and checked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with closing(sqlite3.connect(half)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, no -wal beside it
            report = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if report != "ok":
            raise sqlite3.DatabaseError(report)
        os.replace(half, target)
    finally:
        half.unlink(missing_ok=True)
    return target


def before_migration(connection: sqlite3.Connection, state_file: Path, schema: int) -> Path:
    """Copy the file before a migration. These copies are never deleted."""
    return copy_to(connection, backup_folder(state_file) / f"state-schema{schema}.sqlite3")


def daily(connection: sqlite3.Connection, state_file: Path, today: dt.date) -> Path | None:
    """Make today's copy unless it exists, and delete the oldest. Return the new copy."""
    target = backup_folder(state_file) / f"state-{today.isoformat()}.sqlite3"
    if target.exists():
        return None
    copy_to(connection, target)
    for old in sorted(target.parent.glob("state-????-??-??.sqlite3"))[:-DAILY_KEPT]:
        old.unlink(missing_ok=True)
    return target


def by_hand(connection: sqlite3.Connection, state_file: Path, now: dt.datetime) -> Path:
    """Make a copy on request. These copies are never deleted. Raises StateUnavailable; the state itself is intact."""
    target = backup_folder(state_file) / f"state-{now:%Y-%m-%dT%H%M%S}.sqlite3"
    try:
        return copy_to(connection, target)
    except (OSError, sqlite3.Error) as error:
        raise StateUnavailable(
            f"cannot write the copy {target}: {getattr(error, 'strerror', None) or error}; {state_file} is intact",
            next_step="prep state export /another/disk/my-answers.zip",
        ) from error


def backups(state_file: Path) -> list[Path]:
    """Return all copies, newest first."""
    files = backup_folder(state_file).glob("state-*.sqlite3")
    return sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)


def set_aside(state_file: Path, now: dt.datetime) -> Path:
    """Rename the file, damaged or not, with its -wal and -shm files. Return its new path."""
    target = state_file.with_name(f"state-until-{now:%Y-%m-%dT%H%M%S}.sqlite3")
    for suffix in ("-wal", "-shm", ""):  # the log holds rows that are not in the file yet
        part = state_file.with_name(state_file.name + suffix)
        if part.exists():
            part.replace(target.with_name(target.name + suffix))
    return target


def is_sound(state_file: Path) -> bool:
    """Return whether SQLite can read the file."""
    try:
        with closing(connect_to_read(state_file)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.Error:
        return False
