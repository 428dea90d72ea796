"""Schema of the state file. Triggers forbid changing facts.

facts      setting, session, session_end, prediction, attempt, keypoint_mark, interval_forecast,
           downgrade, card_action, run, vote               exported, merged by key
derived    card, derived                                    may be deleted and recomputed at any time
views      calibration, question_statistics                 always computed
"""

import re
import sqlite3
from contextlib import closing

_VERSION_1 = """
CREATE TABLE setting(
    id TEXT PRIMARY KEY, at TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL);
CREATE TABLE session(
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, started TEXT NOT NULL, spec TEXT NOT NULL,
    bank_rev TEXT NOT NULL, app_version TEXT NOT NULL, host TEXT NOT NULL);
CREATE TABLE session_end(
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES session(id), at TEXT NOT NULL);
CREATE TABLE prediction(
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES session(id), question_id TEXT NOT NULL,
    revision INTEGER NOT NULL, seed INTEGER NOT NULL, at TEXT NOT NULL, answer TEXT NOT NULL,
    confidence INTEGER CHECK(confidence BETWEEN 0 AND 100));
CREATE TABLE attempt(
    id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES session(id),
    prediction_id TEXT REFERENCES prediction(id), question_id TEXT NOT NULL, revision INTEGER NOT NULL,
    seed INTEGER NOT NULL, at TEXT NOT NULL, elapsed_ms INTEGER NOT NULL CHECK(elapsed_ms >= 0),
    confidence INTEGER CHECK(confidence BETWEEN 0 AND 100), hints INTEGER NOT NULL CHECK(hints >= 0),
    answer TEXT NOT NULL, points REAL NOT NULL, points_max REAL NOT NULL,
    correct INTEGER NOT NULL CHECK(correct IN (0, 1)), scored INTEGER NOT NULL CHECK(scored IN (0, 1)),
    grader TEXT NOT NULL CHECK(grader IN ('exact', 'band', 'experiment', 'tests', 'probe', 'self', 'judge')),
    mistake_id TEXT, rating INTEGER CHECK(rating BETWEEN 1 AND 4), detail TEXT NOT NULL);
CREATE TABLE keypoint_mark(
    id TEXT PRIMARY KEY, attempt_id TEXT NOT NULL REFERENCES attempt(id), keypoint_id TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK(verdict IN ('hit', 'partial', 'miss', 'contradicted', 'unsure')),
    by TEXT NOT NULL CHECK(by IN ('self', 'judge', 'probe', 'lint')), quote TEXT);
CREATE TABLE interval_forecast(
    id TEXT PRIMARY KEY, attempt_id TEXT NOT NULL REFERENCES attempt(id), answer_id TEXT NOT NULL,
    lo REAL NOT NULL, hi REAL NOT NULL CHECK(hi >= lo), level REAL NOT NULL CHECK(level > 0 AND level < 1),
    truth REAL);
CREATE TABLE downgrade(
    id TEXT PRIMARY KEY, attempt_id TEXT NOT NULL REFERENCES attempt(id), at TEXT NOT NULL,
    rating INTEGER NOT NULL CHECK(rating BETWEEN 1 AND 4));
CREATE TABLE card_action(
    id TEXT PRIMARY KEY, question_id TEXT NOT NULL, at TEXT NOT NULL,
    action TEXT NOT NULL CHECK(action IN ('suspend', 'resume')));
CREATE TABLE run(
    id TEXT PRIMARY KEY, experiment TEXT NOT NULL, args TEXT NOT NULL, args_hash TEXT NOT NULL,
    code_rev TEXT NOT NULL, machine TEXT NOT NULL, at TEXT NOT NULL, wall_s REAL, result TEXT NOT NULL,
    trace_path TEXT, verdict TEXT);
CREATE TABLE vote(
    id TEXT PRIMARY KEY, claim_id TEXT NOT NULL, at TEXT NOT NULL, vote TEXT NOT NULL,
    confidence INTEGER CHECK(confidence BETWEEN 0 AND 100), verdict TEXT);

CREATE TABLE card(
    question_id TEXT PRIMARY KEY, fsrs TEXT NOT NULL, due TEXT NOT NULL, stability REAL NOT NULL,
    difficulty REAL NOT NULL, reps INTEGER NOT NULL, lapses INTEGER NOT NULL, last_rating INTEGER NOT NULL,
    last_fraction REAL NOT NULL,
    surprise INTEGER NOT NULL, suspended INTEGER NOT NULL);
CREATE TABLE derived(name TEXT PRIMARY KEY, made_from TEXT NOT NULL);

CREATE INDEX attempt_of_question ON attempt(question_id, at);
CREATE INDEX attempt_of_session ON attempt(session_id);
CREATE INDEX mark_of_attempt ON keypoint_mark(attempt_id);
CREATE INDEX forecast_of_attempt ON interval_forecast(attempt_id);
CREATE INDEX run_of_args ON run(experiment, args_hash, code_rev);

CREATE VIEW calibration AS
    SELECT confidence / 10 * 10 AS bin, count(*) AS n, avg(confidence) / 100.0 AS said, avg(correct) AS was,
           avg((confidence / 100.0 - correct) * (confidence / 100.0 - correct)) AS brier
    FROM attempt WHERE scored AND confidence IS NOT NULL GROUP BY 1;
CREATE VIEW question_statistics AS
    SELECT question_id, revision, count(*) AS attempts, sum(correct) AS correct,
           avg(points / max(points_max, 1e-9)) AS fraction, avg(elapsed_ms) / 1000.0 AS seconds, max(at) AS last
    FROM attempt WHERE scored GROUP BY 1, 2;
"""

_FACT_TABLES = [
    name for name in re.findall(r"CREATE TABLE (\w+)", _VERSION_1) if name not in ("card", "derived")
]
"""Ordered so that referenced rows come first."""
_TRIGGERS = "".join(
    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, '{table}: facts are never changed'); END;\n"
    for table in _FACT_TABLES
    for verb in ("UPDATE", "DELETE")
)

MIGRATIONS: tuple[str, ...] = (_VERSION_1 + _TRIGGERS,)
"""Scripts: entry i migrates a file from schema i to i + 1. An empty file has schema 0. Never edit a released script;
add a new one."""

SCHEMA = len(MIGRATIONS)

with closing(sqlite3.connect(":memory:")) as _empty:
    _empty.executescript("".join(MIGRATIONS))
    FACTS: dict[str, dict[str, tuple[str, bool]]] = {
        table: {
            name: (kind, bool(required or is_key))
            for _, name, kind, required, _, is_key in _empty.execute(f"PRAGMA table_info({table})")
        }
        for table in _FACT_TABLES
    }
    """Table -> column -> (type, whether NULL is forbidden)."""
    REFERENCES: dict[str, dict[str, str]] = {
        table: {
            key[3]: key[2] for key in reversed(_empty.execute(f"PRAGMA foreign_key_list({table})").fetchall())
        }
        for table in _FACT_TABLES
    }
    """Table -> column -> referenced table."""
