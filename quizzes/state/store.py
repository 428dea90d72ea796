"""The state file: adds facts, each in one transaction, and queries them.

Several terminals may have it open at once (WAL; a writer waits for the other's transaction). After a kill at any moment
it contains every attempt added before.
"""

from __future__ import annotations

import datetime as dt
import json
import platform
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.paths import state_path
from quizzes.state import backup, database, rows
from quizzes.state.errors import StateError
from quizzes.state.records import (
    SESSION_KINDS,
    Attempt,
    IntervalForecast,
    KeypointMark,
    Prediction,
    Run,
    Session,
    Settings,
    Vote,
    utc_now,
)
from quizzes.state.schema import FACTS, MIGRATIONS
from quizzes.state.ulid import new_id


class State:
    """One learner's facts. Create it with `State.open()`; end with `close()` or `with`."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self.connection = connection
        self.path = path
        """Path of the file; None in memory."""

    @classmethod
    def open(cls, path: Path | None = None, *, migrations: tuple[str, ...] = MIGRATIONS) -> State:
        """Open the state file: create it if needed, migrate it, and copy it once a day.

        Raises:
            StateTooNew, StateDamaged, StateUnavailable: the message names the file, which was not changed.
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
    def in_memory(cls) -> State:
        """Return a state in memory, which is lost at the end."""
        connection = database.connect(":memory:")
        database.migrate(connection, MIGRATIONS, lambda schema: None)
        return cls(connection, None)

    @classmethod
    def open_or_in_memory(cls, path: Path | None = None) -> tuple[State, StateError | None]:
        """Return (the state, None), or (a state in memory, the error to print)."""
        try:
            return cls.open(path), None
        except StateError as error:
            return cls.in_memory(), error

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> State:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # settings

    @property
    def settings(self) -> Settings:
        changes = self._all("SELECT name, value FROM setting ORDER BY at, id")
        return rows.settings_from([(row["name"], row["value"]) for row in changes])

    def change_settings(self, **changes: Any) -> Settings:
        """Change the given fields of Settings. Return all settings."""
        replace(self.settings, **changes)  # a TypeError for a name that does not exist
        now = rows.time_text(utc_now())
        with self._writing():
            for name, value in changes.items():
                self._insert(
                    "setting", {"id": new_id(), "at": now, "name": name, "value": rows.setting_value(value)}
                )
        return self.settings

    # a sitting

    def begin_session(
        self, kind: str, spec: dict[str, Any] | None = None, *, bank_rev: str = "", app_version: str = ""
    ) -> Session:
        """Start a sitting. spec: its options as JSON values, enough to continue it later."""
        if kind not in SESSION_KINDS:
            raise ValueError(f"unknown kind of session {kind!r}; known: {', '.join(SESSION_KINDS)}")
        session = Session(kind, spec or {}, bank_rev, app_version, host=platform.node())
        self.add(session)
        return session

    def end_session(self, session_id: str) -> None:
        """Mark a sitting as complete, so that it is not continued later."""
        row = {"id": new_id(), "session_id": session_id, "at": rows.time_text(utc_now())}
        with self._writing():
            self._insert("session_end", row)

    def commit_prediction(
        self,
        session_id: str,
        *,
        question_id: str,
        revision: int,
        seed: int,
        answer: Any,
        confidence: int | None = None,
    ) -> Prediction:
        """Save a prediction. When this returns, it is in the file and the run may start."""
        prediction = Prediction(session_id, question_id, revision, seed, answer, confidence)
        self.add(prediction)
        return prediction

    def add_attempt(self, attempt: Attempt) -> Attempt:
        """Save a graded answer with its marks and intervals in one transaction."""
        marks = (rows.to_row(m, FACTS["keypoint_mark"], attempt_id=attempt.id) for m in attempt.marks)
        forecasts = (
            rows.to_row(f, FACTS["interval_forecast"], attempt_id=attempt.id) for f in attempt.intervals
        )
        with self._writing():
            self._insert("attempt", rows.to_row(attempt, FACTS["attempt"]))
            for row in marks:
                self._insert("keypoint_mark", row)
            for row in forecasts:
                self._insert("interval_forecast", row)
        return attempt

    def add(self, record: Session | Prediction | Attempt | Run | Vote) -> None:
        """Save one record."""
        if isinstance(record, Attempt):
            self.add_attempt(record)
            return
        table = rows.TABLE_OF[type(record)]
        with self._writing():
            self._insert(table, rows.to_row(record, FACTS[table]))

    def lower_rating(self, attempt_id: str, rating: int) -> None:
        """Lower the rating of an attempt, because the learner guessed. A rating cannot be raised."""
        row = {"id": new_id(), "attempt_id": attempt_id, "at": rows.time_text(utc_now()), "rating": rating}
        with self._writing():
            self._insert("downgrade", row)

    def suspend(self, question_id: str) -> None:
        """Stop reviewing a question until `resume`."""
        self._card_action(question_id, "suspend")

    def resume(self, question_id: str) -> None:
        """Review a suspended question again; its lapses restart at 0."""
        self._card_action(question_id, "resume")

    def _card_action(self, question_id: str, action: str) -> None:
        row = {"id": new_id(), "question_id": question_id, "at": rows.time_text(utc_now()), "action": action}
        with self._writing():
            self._insert("card_action", row)

    # questions

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
        wanted: dict[str, Any] = {
            "question_id = ?": question_id,
            "session_id = ?": session_id,
            "at >= ?": None if since is None else rows.time_text(since),
            "scored = ?": None if scored is None else int(scored),
        }
        chosen = {condition: value for condition, value in wanted.items() if value is not None}
        where = " AND ".join(chosen) or "1"
        found = self._all(f"SELECT * FROM attempt WHERE {where} ORDER BY at, id", *chosen.values())
        inner = f"attempt_id IN (SELECT id FROM attempt WHERE {where})"
        marks = self._by_attempt(KeypointMark, inner, chosen.values())
        forecasts = self._by_attempt(IntervalForecast, inner, chosen.values())
        return [
            rows.to_record(
                Attempt,
                row,
                marks=tuple(marks.get(row["id"], ())),
                intervals=tuple(forecasts.get(row["id"], ())),
            )
            for row in found
        ]

    def _by_attempt(self, kind: type[Any], where: str, values: Iterable[Any]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for row in self._all(f"SELECT * FROM {rows.TABLE_OF[kind]} WHERE {where} ORDER BY id", *values):
            found.setdefault(row["attempt_id"], []).append(rows.to_record(kind, row))
        return found

    def last_seeds(self) -> dict[str, int]:
        """Return question id -> seed of its last attempt."""
        found = self._all("SELECT question_id, seed, max(at || id) FROM attempt GROUP BY 1")
        return {row["question_id"]: row["seed"] for row in found}

    def predictions(self, session_id: str | None = None) -> list[Prediction]:
        where, values = ("session_id = ?", [session_id]) if session_id else ("1", [])
        found = self._all(f"SELECT * FROM prediction WHERE {where} ORDER BY at, id", *values)
        return [rows.to_record(Prediction, row) for row in found]

    def downgrades(self) -> dict[str, int]:
        """Return attempt id -> lowest later rating by the learner."""
        found = self._all("SELECT attempt_id, min(rating) AS rating FROM downgrade GROUP BY 1")
        return {row["attempt_id"]: row["rating"] for row in found}

    def card_actions(self) -> list[tuple[dt.datetime, str, str]]:
        """Return (time, question id, "suspend" or "resume") in order of time."""
        found = self._all("SELECT at, question_id, action FROM card_action ORDER BY at, id")
        return [(rows.to_time(row["at"]), row["question_id"], row["action"]) for row in found]

    def session(self, session_id: str) -> Session:
        """Raises KeyError."""
        found = self._sessions("session.id = ?", session_id)
        if not found:
            raise KeyError(session_id)
        return found[0]

    def sessions(self, kind: str | None = None) -> list[Session]:
        """In order of time."""
        return self._sessions("kind = ?", kind) if kind else self._sessions("1")

    def unfinished(self, kind: str | None = None) -> Session | None:
        """Return the last sitting if it was interrupted, else None. Quizzes of one --question do not count."""
        found = [session for session in self.sessions(kind) if len(session.spec.get("question") or ()) != 1]
        return found[-1] if found and found[-1].ended is None else None

    def _sessions(self, where: str, *values: Any) -> list[Session]:
        found = self._all(
            "SELECT session.*, min(session_end.at) AS ended FROM session "
            f"LEFT JOIN session_end ON session_end.session_id = session.id WHERE {where} "
            "GROUP BY session.id ORDER BY started, session.id",
            *values,
        )
        return [rows.to_record(Session, row) for row in found]

    def runs(self, experiment: str | None = None) -> list[Run]:
        where, values = ("experiment = ?", [experiment]) if experiment else ("1", [])
        found = self._all(f"SELECT * FROM run WHERE {where} ORDER BY at, id", *values)
        return [rows.to_record(Run, row) for row in found]

    def votes(self, claim_id: str | None = None) -> list[Vote]:
        where, values = ("claim_id = ?", [claim_id]) if claim_id else ("1", [])
        return [
            rows.to_record(Vote, row)
            for row in self._all(f"SELECT * FROM vote WHERE {where} ORDER BY at, id", *values)
        ]

    def statistics(self) -> list[dict[str, Any]]:
        """Return per question and revision: attempts, correct, mean share of the points, mean seconds, last."""
        return [dict(row) for row in self._all("SELECT * FROM question_statistics ORDER BY 1, 2")]

    # derived

    def version(self) -> str:
        """Return a version that changes when a fact is added that affects cards."""
        tables = ("setting", "attempt", "downgrade", "card_action")
        return json.dumps([self.count(table) for table in tables])

    def derived(self, name: str, version: str) -> list[dict[str, Any]] | None:
        """Return the rows of a derived table, or None if they are missing or from another version."""
        made = self._all("SELECT made_from FROM derived WHERE name = ?", name)
        if not made or made[0]["made_from"] != version:
            return None
        return [dict(row) for row in self._all(f"SELECT * FROM {_derived(name)}")]

    def put_derived(self, name: str, version: str, table: list[dict[str, Any]]) -> None:
        """Replace the rows of a derived table, computed from the facts of `version`."""
        with self._writing():
            self.connection.execute(f"DELETE FROM {_derived(name)}")
            for row in table:
                self._insert(name, row)
            self.connection.execute("INSERT OR REPLACE INTO derived VALUES (?, ?)", (name, version))

    def drop_derived(self) -> None:
        """Delete all derived tables."""
        with self._writing():
            self.connection.execute("DELETE FROM card")
            self.connection.execute("DELETE FROM derived")

    # below

    def _all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with database.telling(self.path or "in memory"):
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with database.telling(self.path or "in memory"), database.transaction(self.connection):
            yield

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        names = ", ".join(row)
        places = ", ".join("?" * len(row))
        values = tuple(_storable(value) for value in row.values())
        try:
            self.connection.execute(f"INSERT INTO {table}({names}) VALUES ({places})", values)
        except OverflowError:
            raise ValueError(f"a number of this {table} is beyond 64 bits: {values}") from None


def _storable(value: Any) -> Any:
    """Replace lone surrogates, which a terminal can send, by question marks."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value


def _derived(name: str) -> str:
    assert name in ("card",), name
    return name
