"""Opening the file: settings of the connection, migrations, and SQLite's complaints in words that help."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quizzes.state.errors import StateDamaged, StateError, StateTooNew, StateUnavailable

BUSY_SECONDS = 10.0
"""How long a writer waits for another terminal's transaction, which takes milliseconds."""


def connect(path: Path | str) -> sqlite3.Connection:
    """A connection without implicit transactions; columns by name."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot change the file."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def schema_of(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def refuse_newer(path: Path, known: int) -> None:
    """Raises StateTooNew. Reads only, so that a file of a newer version stays byte for byte what it was."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with telling(path):
        connection = connect_to_read(path)
        try:
            found = schema_of(connection)
        finally:
            connection.close()
    if found > known:
        raise StateTooNew(
            f"{path} was written by a newer prep (schema {found}; this one knows {known}); it was not touched",
            next_step="update prep, or use another folder: PREP_HOME=/some/folder prep ...",
        )


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StateDamaged if SQLite finds a page that is not what it should be."""
    with telling(path):
        report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if report != "ok":
        raise damaged(path, report)


def use_wal(connection: sqlite3.Connection) -> None:
    """Readers and a writer at once. Switching needs the file for a moment alone, and for that SQLite does not wait."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def migrate(
    connection: sqlite3.Connection, scripts: tuple[str, ...], before: Callable[[int], object]
) -> list[int]:
    """Bring the file to schema len(scripts); returns the schemas that were left behind.

    before: called with the old schema ahead of each step of a file that holds something; makes the backup.
    """
    left = []
    while (schema := schema_of(connection)) < len(scripts):
        if schema > 0:
            before(schema)
        with transaction(connection):
            if schema_of(connection) != schema:  # another terminal did it while this one waited
                continue
            for statement in statements(scripts[schema]):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {schema + 1}")
        left.append(schema)
    return left


def statements(script: str) -> Iterator[str]:
    """One at a time: `executescript` would commit in between."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or none of it; the write lock is taken at the start, so that it cannot fail in the middle."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def telling(path: Path | str) -> Iterator[None]:
    """SQLite's and the system's errors as a StateError that names the file and the way out."""
    try:
        yield
    except StateError:
        raise
    except sqlite3.OperationalError as error:
        raise StateUnavailable(f"the learner state {path}: {error}", next_step=_help(str(error))) from error
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise StateUnavailable(f"the learner state {path}: {reason}", next_step=_help(reason)) from error


def damaged(path: Path | str, reason: str) -> StateDamaged:
    return StateDamaged(
        f"the learner state {path} is damaged ({reason}); it was left where it is",
        next_step="prep state backup   lists the copies; then: prep state reset --yes && prep state import COPY",
    )


def _help(reason: str) -> str:
    if "locked" in reason:
        return "another program holds it: close that, then try again"
    if "full" in reason or "space" in reason.lower():
        return "free some space on that disk, or: PREP_HOME=/some/folder prep ..."
    return "is the folder yours to write? Another one: PREP_HOME=/some/folder prep ..."
