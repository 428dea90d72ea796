"""Export of the facts to a zip with one JSONL file per table and a manifest, and import as a union.

Importing adds missing rows by key, so importing twice is idempotent and the order of archives does not matter. All rows
are checked before the first is written, and written in one transaction.
"""

import datetime as dt
import hashlib
import json
import sqlite3
import zipfile
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep_common.text_file import unreadable
from quizzes.state import database, records
from quizzes.state.database import ArchiveRefused, StateError, StateUnavailable
from quizzes.state.schema import FACTS, MIGRATIONS, REFERENCES, SCHEMA
from quizzes.state.store import State

FORMAT = "prep-state"
MANIFEST = "manifest.json"
MOST_BYTES = 1 << 30
"""Maximum size of one unpacked table."""

Tables = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Imported:
    """Number of rows by table."""

    added: dict[str, int]
    known: dict[str, int]
    """Rows that were already present."""


def export(state: State, target: Path, app_version: str = "") -> dict[str, int]:
    """Write all facts to a zip and return the rows per table. A failed export keeps an existing file."""
    tables = facts(state)
    files = {
        f"{table}.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        for table, rows in tables.items()
    }
    manifest = {
        "format": FORMAT,
        "schema": SCHEMA,
        "app_version": app_version,
        "made": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "files": {
            name: {"rows": text.count(b"\n"), "sha256": hashlib.sha256(text).hexdigest()}
            for name, text in files.items()
        },
    }
    half = target.with_name(f"{target.name}.part")
    try:
        with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(MANIFEST, json.dumps(manifest, indent=2))
            for name, text in files.items():
                archive.writestr(name, text)
        half.replace(target)
    except OSError as error:
        raise StateUnavailable(
            f"cannot write {target}: {error.strerror or error}",
            next_step="choose a file in a writable folder",
        ) from error
    finally:
        half.unlink(missing_ok=True)
    return {table: len(rows) for table, rows in tables.items()}


def facts(state: State) -> Tables:
    """Return a consistent snapshot of all facts as plain values, sorted by key."""
    with database.telling(state.path or "in memory"):
        state.connection.execute("BEGIN")  # one snapshot, even if another terminal adds rows
        try:
            return {table: _read(state.connection, table) for table in FACTS}
        finally:
            state.connection.execute("COMMIT")


def import_(state: State, source: Path) -> Imported:
    """Add the missing facts of an archive, or of a copy of a state file.

    Raises ArchiveRefused if it is damaged, from a newer version, or has different content under an existing key. The
    state was not changed.
    """
    tables = _from_copy(source) if _is_sqlite(source) else _from_zip(source)
    _check_rows(source, tables)
    added, known = {}, {}
    with database.telling(state.path or "in memory"):
        try:
            with database.transaction(state.connection):
                for table, columns in FACTS.items():
                    here = {row["id"]: row for row in _read(state.connection, table)}
                    for row in tables[table]:
                        if here.get(row["id"], row) != row:
                            raise _refused(
                                source, f"{table} {row['id']} differs from the one that is already here"
                            )
                    fresh = [row for row in tables[table] if row["id"] not in here]
                    values = ", ".join(f":{column}" for column in columns)
                    state.connection.executemany(
                        f"INSERT INTO {table}({', '.join(columns)}) VALUES ({values})", fresh
                    )
                    added[table] = len(fresh)
                    known[table] = len(tables[table]) - len(fresh)
        except (
            sqlite3.IntegrityError,
            sqlite3.InterfaceError,
            sqlite3.ProgrammingError,
            OverflowError,
        ) as error:
            raise _refused(source, f"a row does not fit: {error}") from error
    return Imported(added, known)


def _read(connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    columns = FACTS[table]
    rows = connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _is_sqlite(source: Path) -> bool:
    try:
        with source.open("rb") as file:
            return file.read(15) == b"SQLite format 3"
    except OSError as error:
        raise ArchiveRefused(str(unreadable(source, error))) from error


def _from_copy(source: Path) -> Tables:
    """Return the facts of a backup. It is copied to memory first, because reading must not change it."""
    try:
        database.refuse_newer(source.absolute(), SCHEMA)
        with State.in_memory() as copy:
            with closing(database.connect_to_read(source)) as original:
                database.check(original, source)
                original.backup(copy.connection)
            database.migrate(copy.connection, MIGRATIONS, lambda schema: None)
            return facts(copy)
    except (StateError, sqlite3.Error) as error:
        raise _refused(source, str(error)) from error


def _from_zip(source: Path) -> Tables:
    try:
        with zipfile.ZipFile(source) as archive:
            manifest = json.loads(_member(source, archive, MANIFEST))
            _check_manifest(source, manifest)
            tables: Tables = {table: [] for table in FACTS}
            for name, promised in manifest["files"].items():
                table = name.removesuffix(".jsonl")
                if table not in FACTS:
                    raise _refused(source, f"it has a table {table!r} that this version does not know")
                text = _member(source, archive, name)
                if hashlib.sha256(text).hexdigest() != promised["sha256"]:
                    raise _refused(source, f"{name} is not what was exported (its checksum differs)")
                tables[table] = [json.loads(line) for line in text.splitlines()]
            return tables
    except StateError:
        raise
    except zipfile.BadZipFile as error:
        why = f"it is neither an export nor a copy of a state file ({str(error).lower()})"
        raise _refused(source, why, "prep state export FILE   makes an export") from error
    except (KeyError, ValueError, TypeError, AttributeError, EOFError) as error:
        raise _refused(source, f"{type(error).__name__}: {error}") from error
    except (OSError, RuntimeError) as error:  # RuntimeError: encrypted, or an unknown compression method
        raise _refused(source, str(error)) from error


def _member(source: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MOST_BYTES:
        raise _refused(source, f"{name} claims to be larger than {MOST_BYTES >> 30} GiB")
    try:
        return archive.read(name)
    except zlib.error as error:
        raise _refused(source, f"{name}: {error}") from error


def _check_manifest(source: Path, manifest: dict[str, Any]) -> None:
    if manifest["format"] != FORMAT:
        raise _refused(source, f"it is a {manifest['format']!r}, not an export of a learner state")
    if manifest["schema"] > SCHEMA:
        raise ArchiveRefused(
            f"{source} comes from a newer prep (schema {manifest['schema']}; this one knows {SCHEMA}); "
            "nothing was imported",
            next_step="update prep, then import again",
        )


def _check_rows(source: Path, tables: Tables) -> None:
    """Check that every row has the columns of its table, a unique key, and existing references."""
    keys: dict[str, set[str]] = {}
    for table, columns in FACTS.items():
        known = keys[table] = set()
        for number, row in enumerate(tables[table], 1):
            where = f"{table}, row {number}"
            if not isinstance(row, dict) or set(row) != set(columns):
                raise _refused(source, f"{where}: it has not the columns of this table")
            if not records.is_id(row["id"]) or row["id"] in known:
                raise _refused(source, f"{where}: {row['id']!r} is not a key, or appears twice")
            for column, value in row.items():
                if not _fits(column, value, *columns[column]):
                    raise _refused(source, f"{where}: {column} cannot be {str(value)[:60]!r}")
            for column, target in REFERENCES[table].items():
                if row[column] is not None and row[column] not in keys[target]:
                    raise _refused(source, f"{where}: its {target} {row[column]!r} is missing")
            known.add(row["id"])
    try:
        records.settings_from([(row["name"], row["value"]) for row in tables["setting"]])
    except (ValueError, TypeError) as error:
        raise _refused(source, f"setting: {error}") from error


def _fits(column: str, value: Any, kind: str, needed: bool) -> bool:
    """Return whether the program can read a value of this column back."""
    if value is None:
        return not needed
    types = {"TEXT": (str,), "INTEGER": (int,), "REAL": (int, float)}[kind]
    if not isinstance(value, types) or isinstance(value, bool):
        return False
    try:
        if column in records.JSON_COLUMNS:
            json.loads(str(value))
        elif column in records.TIME_COLUMNS:
            return records.time_text(dt.datetime.fromisoformat(str(value))) == value
    except (ValueError, RecursionError):
        return False
    return True


def _refused(source: Path, why: str, next_step: str = "export it again") -> ArchiveRefused:
    return ArchiveRefused(f"{source} was refused: {why}; nothing was imported", next_step=next_step)
