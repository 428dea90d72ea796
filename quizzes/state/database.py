"""SQLite connections, migrations, and errors with a next step."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from prep_common.paths import why_unwritable

BUSY_SECONDS = 10.0
"""Timeout for another terminal's transaction, which takes milliseconds."""

FULL = ("full", "space", "too large", "quota")
"""Words of SQLite and of the system for a disk without space."""


class StateError(OSError):
    """Raised if the state cannot be read or written. The message names the file; `next_step` says what to do."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


class StateTooNew(StateError):
    """The file is from a newer version of prep. It was not changed."""


class StateDamaged(StateError):
    """SQLite cannot read the file. It was not changed."""


class StateUnavailable(StateError):
    """The folder is not writable, the disk is full, or another program has locked the file."""


class ArchiveRefused(StateError):
    """An archive is damaged, from a newer version, or contradicts this state. Nothing was imported."""


def connect(path: Path | str) -> sqlite3.Connection:
    """Return a connection without implicit transactions, with columns by name."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Return a read-only connection."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def connect_without_space(path: Path) -> sqlite3.Connection:
    """Return a connection that reads and needs no file beside the state: its log's index is in memory.

    It locks the file. Raises sqlite3.OperationalError if another terminal has it open.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA query_only = ON")
    return connection


def schema_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_newer(path: Path, known: int) -> None:
    """Raise StateTooNew for a file of a newer version, without changing it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with telling(path), closing(connect_to_read(path)) as connection:
        version = schema_of(connection)
    if version > known:
        raise StateTooNew(
            f"{path} was written by a newer prep (schema {version}; this version supports {known}); it was not changed",
            next_step="update prep, or use another folder: PREP_HOME=/some/folder prep ...",
        )


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StateDamaged if SQLite's quick check fails."""
    with telling(path):
        report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if report != "ok":
        raise damaged(path, report)


def use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL for concurrent readers. Switching needs exclusive access, for which SQLite does not wait."""
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
) -> None:
    """Migrate the file to schema len(scripts).

    before: called with the old schema before each step of a non-empty file, to make a backup.
    """
    while (schema := schema_of(connection)) < len(scripts):
        if schema > 0:
            before(schema)
        with transaction(connection):
            if schema_of(connection) != schema:  # another terminal migrated it meanwhile
                continue
            for statement in statements(scripts[schema]):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {schema + 1}")


def statements(script: str) -> Iterator[str]:
    """Yield single statements, because `executescript` would commit in between."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction that takes the write lock at its start: no later statement can fail for lack of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def telling(path: Path | str) -> Iterator[None]:
    """Convert SQLite's and the system's errors to a StateError with the file and a next step."""
    try:
        yield
    except StateError:
        raise
    except sqlite3.OperationalError as error:
        reason = _reason(error, Path(path))
        raise unavailable(path, reason) from error
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise unavailable(path, reason) from error


def unavailable(path: Path | str, reason: str) -> StateUnavailable:
    """Return the error for a file that cannot be opened or written: what failed, and what to do."""
    if "locked" in reason:
        help_ = "another program has locked it; close that program, then try again"
    elif any(words in reason.lower() for words in FULL):
        why = f"nothing can be saved in the learner state {path}: {reason}"
        return StateUnavailable(
            why, next_step="free some disk space, or use another folder: PREP_HOME=/some/folder prep ..."
        )
    else:
        help_ = "check that you may write to the folder, or use another one: PREP_HOME=/some/folder prep ..."
    return StateUnavailable(f"the learner state {path} cannot be used: {reason}", next_step=help_)


def _reason(error: sqlite3.OperationalError, path: Path) -> str:
    """Return what SQLite says, and if that hides the cause ("disk I/O error"), what the system says of the folder."""
    hidden = ("disk I/O error", "unable to open", "readonly")
    if not any(words in str(error) for words in hidden):
        return str(error)
    cause = why_unwritable(path.absolute().parent)
    return f"{error} ({cause})" if cause else str(error)


def damaged(path: Path | str, reason: str) -> StateDamaged:
    return StateDamaged(
        f"the learner state {path} is damaged ({reason}); it was not changed",
        next_step="prep state backup   lists the copies, and says how to return to the newest",
    )
