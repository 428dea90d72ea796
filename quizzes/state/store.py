"""The state file: adds facts, each in one transaction, and queries them.

Several terminals may have it open at once (WAL; a writer waits for the other's transaction). After a kill at any moment
it contains every attempt added before.
"""

import datetime as dt
import fcntl
import json
import platform
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from prep_common.paths import state_path
from quizzes.state import backup, database, records
from quizzes.state.database import StateError, StateUnavailable
from quizzes.state.records import Attempt, Prediction, Session, Settings, Vote, new_id, to_record, to_row
from quizzes.state.schema import FACTS, MIGRATIONS

Record = TypeVar("Record")


class State:
    """One learner's facts. Create it with `State.open()`; end with `close()` or `with`."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self.connection = connection
        self.path = path
        """Path of the file; None in memory."""
        self._claims: IO[str] | None = None
        """File with a locked byte for each claimed sitting."""

    @classmethod
    def open(cls, path: Path | None = None, *, migrations: tuple[str, ...] = MIGRATIONS) -> Self:
        """Open the state file: create it if needed, migrate it, and copy it once a day.

        Raises StateTooNew, StateDamaged, StateUnavailable: the message names the file, which was not changed.
        """
        path = (path or state_path()).absolute()
        with database.telling(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            database.refuse_newer(path, len(migrations))
            connection = database.connect(path)
            try:
                database.check(connection, path)
                database.use_wal(connection)
                database.migrate(
                    connection, migrations, lambda schema: backup.before_migration(connection, path, schema)
                )
                state = cls(connection, path)
                with suppress(OSError, sqlite3.Error):  # a full disk must not prevent practice
                    if state.count("attempt"):
                        backup.daily(connection, path, dt.date.today())
            except BaseException:
                connection.close()
                raise
        return state

    @classmethod
    def open_to_read(cls, path: Path | None = None) -> Self:
        """Open the state file to read it, also on a full disk; without a file or in an empty one, an empty state.

        Raises the errors of `open`.
        """
        path = (path or state_path()).absolute()
        if not path.exists():
            return cls.in_memory()
        try:
            return cls.open(path)
        except StateUnavailable as unavailable:
            try:
                connection = database.connect_without_space(path)
                schema = database.schema_of(connection)
                if schema == len(MIGRATIONS):
                    return cls(connection, path)
                connection.close()
                if schema == 0:  # the disk was full before anything was saved
                    return cls.in_memory()
            except sqlite3.Error:
                pass  # the first error says more
            raise unavailable from None

    @classmethod
    def in_memory(cls) -> Self:
        """Return a state in memory, which is lost at the end."""
        connection = database.connect(":memory:")
        database.migrate(connection, MIGRATIONS, lambda schema: None)
        return cls(connection, None)

    @classmethod
    def open_or_in_memory(cls, path: Path | None = None) -> tuple[Self, StateError | None]:
        """Return (the state, None), or (a state in memory, the error to print)."""
        try:
            return cls.open(path), None
        except StateError as error:
            return cls.in_memory(), error

    def close(self) -> None:
        self.connection.close()
        if self._claims is not None:
            self._claims.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def change_settings(self, **changes: Any) -> Settings:
        """Change the given fields of Settings. Return all settings."""
        replace(self.settings, **changes)  # a TypeError for a name that does not exist
        plain = {
            name: value.isoformat() if isinstance(value, dt.date) else value
            for name, value in changes.items()
        }
        self._write(
            *(("setting", _stamped(name=name, value=json.dumps(value))) for name, value in plain.items())
        )
        return self.settings

    def begin_session(
        self, kind: str, spec: dict[str, Any] | None = None, *, bank_rev: str = "", app_version: str = ""
    ) -> Session:
        """Start a sitting. spec: its options as JSON values, enough to continue it later."""
        if kind not in records.SESSION_KINDS:
            raise ValueError(f"unknown kind of session {kind!r}; known: {', '.join(records.SESSION_KINDS)}")
        session = Session(kind, spec or {}, bank_rev, app_version, host=platform.node())
        self.add(session)
        return session

    def claim(self, session_id: str) -> bool:
        """Claim a sitting for this process, until the state is closed or the process ends.

        Return False if another process has it: two terminals that continue one sitting would ask the same items.
        """
        if self.path is None:
            return True
        with suppress(OSError):  # a full disk must not prevent practice
            self._claims = self._claims or self.path.with_name(f"{self.path.name}-sittings").open("a")
            place = zlib.crc32(session_id.encode())  # one byte of the file stands for a sitting
            try:
                fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                return False
        return True

    def committed(self, session: Session) -> list[tuple[Prediction, float]]:
        """Return the predictions of a sitting that have no attempt, and the seconds that each took.

        The process was killed in between. The time is counted from the start of the sitting or its last attempt.
        """
        attempts = self.attempts(session_id=session.id)
        graded = {attempt.prediction_id for attempt in attempts}
        ungraded = []
        for prediction in self.predictions(session.id):
            before = [attempt.at for attempt in attempts if attempt.at < prediction.at]
            if prediction.id not in graded:
                seconds = (prediction.at - max([session.started, *before])).total_seconds()
                ungraded.append((prediction, seconds))
        return ungraded

    def end_session(self, session_id: str) -> None:
        """Mark a sitting as complete, so that it is not continued later."""
        self._write(("session_end", _stamped(session_id=session_id)))

    def add(self, record: Record) -> Record:
        """Save one record, an attempt with its marks and intervals, and return it. A prediction that was added is in
        the file: its run may start."""
        table = records.table_of(type(record))
        rows = [(table, to_row(record, FACTS[table]))]
        if isinstance(record, Attempt):
            for detail in (*record.marks, *record.intervals):
                table = records.table_of(type(detail))
                rows.append((table, to_row(detail, FACTS[table], attempt_id=record.id)))
        self._write(*rows)
        return record

    def lower_rating(self, attempt_id: str, rating: int) -> None:
        """Lower the rating of an attempt, because the learner guessed. A rating cannot be raised."""
        self._write(("downgrade", _stamped(attempt_id=attempt_id, rating=rating)))

    def suspend(self, question_id: str) -> None:
        """Stop reviewing a question until `resume`."""
        self._write(("card_action", _stamped(question_id=question_id, action="suspend")))

    def resume(self, question_id: str) -> None:
        """Review a suspended question again; its lapses restart at 0."""
        self._write(("card_action", _stamped(question_id=question_id, action="resume")))

    @property
    def settings(self) -> Settings:
        changes = self._all("SELECT name, value FROM setting ORDER BY at, id")
        return records.settings_from([(row["name"], row["value"]) for row in changes])

    def count(self, table: str) -> int:
        """Return the number of rows of a fact table."""
        assert table in FACTS, table
        return int(self._all(f"SELECT count(*) AS n FROM {table}")[0]["n"])

    def attempts(
        self,
        *,
        question_id: str | None = None,
        session_id: str | None = None,
        since: dt.datetime | None = None,
        scored: bool | None = None,
    ) -> list[Attempt]:
        """Return attempts in order of time, with their marks and intervals."""
        wanted = {
            "question_id = ?": question_id,
            "session_id = ?": session_id,
            "at >= ?": None if since is None else records.time_text(since),
            "scored = ?": scored,
        }
        chosen = {condition: value for condition, value in wanted.items() if value is not None}
        where = " AND ".join(chosen) or "1"
        # before the details: an attempt that another terminal adds in between has its marks or is left out
        attempts = self._all(f"SELECT * FROM attempt WHERE {where} ORDER BY at, id", *chosen.values())
        details: dict[tuple[type, str], list[Any]] = {}
        for kind in (records.KeypointMark, records.IntervalForecast):
            query = f"SELECT * FROM {records.table_of(kind)} WHERE attempt_id IN (SELECT id FROM attempt WHERE {where})"
            for row in self._all(f"{query} ORDER BY id", *chosen.values()):
                details.setdefault((kind, row["attempt_id"]), []).append(to_record(kind, row))
        return [
            to_record(
                Attempt,
                row,
                marks=tuple(details.get((records.KeypointMark, row["id"]), ())),
                intervals=tuple(details.get((records.IntervalForecast, row["id"]), ())),
            )
            for row in attempts
        ]

    def last_seeds(self) -> dict[str, int]:
        """Return question id -> seed of its last attempt."""
        rows = self._all("SELECT question_id, seed, max(at || id) FROM attempt GROUP BY 1")
        return {row["question_id"]: row["seed"] for row in rows}

    def downgrades(self) -> dict[str, int]:
        """Return attempt id -> lowest later rating by the learner."""
        return dict(map(tuple, self._all("SELECT attempt_id, min(rating) FROM downgrade GROUP BY 1")))

    def card_actions(self) -> list[tuple[dt.datetime, str, str]]:
        """Return (time, question id, "suspend" or "resume") in order of time."""
        rows = self._all("SELECT at, question_id, action FROM card_action ORDER BY at, id")
        return [(dt.datetime.fromisoformat(at), question_id, action) for at, question_id, action in rows]

    def sessions(self, kind: str | None = None) -> list[Session]:
        """In order of time."""
        rows = self._all(
            "SELECT session.*, min(session_end.at) AS ended FROM session "
            "LEFT JOIN session_end ON session_end.session_id = session.id WHERE ?1 IS NULL OR kind = ?1 "
            "GROUP BY session.id ORDER BY started, session.id",
            kind,
        )
        return [to_record(Session, row) for row in rows]

    def unfinished(self, kind: str | None = None) -> Session | None:
        """Return the last sitting if it was interrupted, else None. Quizzes of one --question do not count."""
        sessions = [
            session for session in self.sessions(kind) if len(session.spec.get("question") or ()) != 1
        ]
        return sessions[-1] if sessions and sessions[-1].ended is None else None

    def predictions(self, session_id: str | None = None) -> list[Prediction]:
        return self._records(Prediction, session_id=session_id)

    def votes(self, claim_id: str | None = None) -> list[Vote]:
        return self._records(Vote, claim_id=claim_id)

    def _records(self, kind: type[Record], **equal: str | None) -> list[Record]:
        """Return records in order of time. equal: column -> wanted value, None for any."""
        wanted = {f"{column} = ?": value for column, value in equal.items() if value}
        where = " AND ".join(wanted) or "1"
        query = f"SELECT * FROM {records.table_of(kind)} WHERE {where} ORDER BY at, id"
        return [to_record(kind, row) for row in self._all(query, *wanted.values())]

    def version(self) -> str:
        """Return a version that changes when a fact is added that affects cards."""
        return json.dumps([self.count(table) for table in ("setting", "attempt", "downgrade", "card_action")])

    def derived_cards(self, version: str) -> list[dict[str, Any]] | None:
        """Return the rows of the table of cards, or None if they are missing or from another version."""
        if not self._all("SELECT 1 FROM derived WHERE name = 'card' AND made_from = ?", version):
            return None
        return [dict(row) for row in self._all("SELECT * FROM card")]

    def put_derived_cards(self, version: str, cards: list[dict[str, Any]]) -> None:
        """Replace the rows of the table of cards, computed from the facts of `version`."""
        with self._writing():
            self.connection.execute("DELETE FROM card")
            for row in cards:
                self._insert("card", row)
            self.connection.execute("INSERT OR REPLACE INTO derived VALUES ('card', ?)", (version,))

    def drop_derived(self) -> None:
        """Delete all derived tables."""
        with self._writing():
            self.connection.execute("DELETE FROM card")
            self.connection.execute("DELETE FROM derived")

    def _all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with database.telling(self.path or "in memory"):
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with database.telling(self.path or "in memory"), database.transaction(self.connection):
            yield

    def _write(self, *rows: tuple[str, dict[str, Any]]) -> None:
        """Insert (table, row) pairs in one transaction."""
        with self._writing():
            for table, row in rows:
                self._insert(table, row)

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        # lone surrogates, which a terminal can send, become question marks
        values = tuple(
            value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
            for value in row.values()
        )
        names, places = ", ".join(row), ", ".join("?" * len(row))
        try:
            self.connection.execute(f"INSERT INTO {table}({names}) VALUES ({places})", values)
        except OverflowError:
            raise ValueError(f"a number of this {table} is beyond 64 bits: {values}") from None


def _stamped(**columns: Any) -> dict[str, Any]:
    """Return a row with a key and the current time."""
    return {"id": new_id(), "at": records.time_text(records.utc_now()), **columns}
