"""The state file: facts survive, two writers get along, and what cannot be read is left alone."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from prep_common.paths import state_path
from quizzes.state import (
    ArchiveRefused,
    Attempt,
    IntervalForecast,
    KeypointMark,
    Prediction,
    State,
    StateDamaged,
    StateTooNew,
    StateUnavailable,
    Vote,
    archive,
    backup,
)
from quizzes.state.records import is_id, new_id, utc_now
from quizzes.state.schema import FACTS, MIGRATIONS, SCHEMA

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prep" / "state.sqlite3"


def attempt(session_id: str, question: str = "memory.kv_bytes", **more: object) -> Attempt:
    values = {"revision": 1, "seed": 7, "answer": {"kv": 2.5}, "points": 1, "points_max": 1, "correct": True}
    return Attempt(session_id, question, **{**values, "grader": "exact", "rating": 3, **more})


def fill(state: State, count: int = 3) -> list[Attempt]:
    session = state.begin_session("quiz", {"topic": "memory", "n": count})
    return [state.add(attempt(session.id, seed=seed)) for seed in range(count)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_goes_in_comes_out_after_reopening(path: Path) -> None:
    with State.open(path) as state:
        session = state.begin_session("quiz", {"topic": "memory"}, bank_rev="r1", app_version="0.1")
        committed = state.add(Prediction(session.id, "memory.kv_bytes", 1, 7, {"kv": 2.5}, confidence=90))
        added = state.add(
            attempt(
                session.id,
                prediction_id=committed.id,
                confidence=90,
                detail={"shown": [1, "zwei", None]},
                marks=(
                    KeypointMark("per_head", "hit", "self", "per KV head"),
                    KeypointMark("gqa", "miss", "probe"),
                ),
                intervals=(IntervalForecast("kv", 2.0, 3.0, 2.5),),
            )
        )
        vote = Vote("S0-01", "refuted", 70, "depends")
        state.add(vote)
    with State.open(path) as state:
        assert state.attempts() == [added]
        assert state.predictions(session.id) == [committed]
        assert state.sessions() == [session]
        assert state.votes("S0-01") == [vote]


def test_attempts_are_found_by_question_session_and_time(path: Path) -> None:
    with State.open(path) as state:
        first = fill(state, 2)
        session = state.begin_session("review")
        old = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        other = state.add(attempt(session.id, "lora.slots", at=old, scored=False))
        assert [a.id for a in state.attempts()] == [other.id, *(a.id for a in first)]
        assert state.attempts(question_id="lora.slots") == [other] == state.attempts(session_id=session.id)
        assert state.attempts(since=old + dt.timedelta(days=1)) == first
        assert state.attempts(scored=False) == [other]


def test_an_attempt_that_is_added_while_others_are_read_never_lacks_its_marks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with State.open(path) as state, State.open(path) as other:
        session = state.begin_session("quiz", {"topic": "memory"})
        read, late = state._all, [attempt(session.id, marks=(KeypointMark("k", "hit", "self"),))]

        def interrupted(*query: object) -> object:
            found = read(*query)
            if late:
                other.add(late.pop())
            return found

        monkeypatch.setattr(state, "_all", interrupted)
        assert all(found.marks for found in state.attempts())
        assert [len(found.marks) for found in state.attempts()] == [1]


def test_the_committed_prediction_is_on_disk_before_the_run(path: Path) -> None:
    with State.open(path) as state:
        session = state.begin_session("quiz")
        state.add(Prediction(session.id, "a.b", revision=1, seed=0, answer=98))
        with sqlite3.connect(path) as other:
            assert other.execute("SELECT answer FROM prediction").fetchall() == [("98",)]


def test_facts_cannot_be_changed_or_deleted(path: Path) -> None:
    with State.open(path) as state:
        fill(state)
        for order in ("UPDATE attempt SET correct = 0", "DELETE FROM attempt", "DELETE FROM session"):
            with pytest.raises(sqlite3.IntegrityError, match="facts are never changed"):
                state.connection.execute(order)


def test_settings_are_facts_and_the_latest_holds(path: Path) -> None:
    with State.open(path) as state:
        assert state.settings.role is None
        state.change_settings(role="sre", interview_date=dt.date(2026, 12, 15))
        state.change_settings(role="kernel")
        assert state.settings.role == "kernel"
        assert state.settings.interview_date == dt.date(2026, 12, 15)
        state.change_settings(interview_date=None)
        assert state.settings.interview_date is None
        assert state.count("setting") == 4
        for wrong in ({"hours_per_week": -1}, {"hours_per_week": "many"}, {"interview_date": "soon"}):
            with pytest.raises(ValueError):
                state.change_settings(**wrong)
        assert state.count("setting") == 4


def test_a_session_that_was_cut_off_can_be_gone_on_with(path: Path) -> None:
    with State.open(path) as state:
        session = state.begin_session("quiz", {"ids": ["a.b"]})
        assert state.unfinished("quiz") == session
        state.end_session(session.id)
        assert state.unfinished("quiz") is None
        assert state.sessions()[-1].ended is not None
        with pytest.raises(ValueError, match="unknown kind of session"):
            state.begin_session("exams")


def test_half_characters_from_a_terminal_and_numbers_beyond_64_bits_do_not_break_the_file(path: Path) -> None:
    with State.open(path) as state:
        session = state.begin_session("quiz")
        state.add(
            attempt(session.id, answer="\udce4 \x00 é", marks=(KeypointMark("k", "hit", "self", "\udce4"),))
        )
        with pytest.raises(ValueError, match="64 bits"):
            state.add(attempt(session.id, seed=1 << 70))
        assert [a.answer for a in state.attempts()] == ["\udce4 \x00 é"]


def test_an_attempt_of_no_session_is_refused_whole(path: Path) -> None:
    with State.open(path) as state:
        with pytest.raises(sqlite3.IntegrityError):
            state.add(attempt(new_id(), marks=(KeypointMark("k", "hit", "self"),)))
        assert state.count("attempt") == state.count("keypoint_mark") == 0


WRITER = """
import sys
from pathlib import Path
from quizzes.state import Attempt, State
state = State.open(Path(sys.argv[1]))
session = state.begin_session("quiz")
for seed in range(int(sys.argv[2])):
    state.add(Attempt(session.id, "a.b", 1, seed, {}, 1, 1, True, "exact"))
    print(seed, flush=True)
"""


def writer(path: Path, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(count)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_terminals_open_and_write_at_once(path: Path) -> None:
    writers = [writer(path, 25) for _ in range(5)]
    for process in writers:
        process.communicate(timeout=120)
        assert process.returncode == 0
    with State.open(path) as state:
        assert state.count("attempt") == 125 and state.count("session") == 5


def test_kill_loses_nothing_that_was_added(path: Path) -> None:
    process = writer(path, 100_000)
    told = [process.stdout.readline() for _ in range(25)]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    with State.open(path) as state:
        seeds = [a.seed for a in state.attempts()]
    assert len(seeds) >= len(told) and seeds == list(range(len(seeds)))


def test_a_file_of_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    with State.open(path) as state:
        fill(state)
        state.connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = digest(path)
    with pytest.raises(
        StateTooNew, match=rf"{path}.*schema {SCHEMA + 1}; this version supports {SCHEMA}"
    ) as error:
        State.open(path)
    assert "update prep" in error.value.next_step
    assert digest(path) == before


@pytest.mark.parametrize("damage", ["no database", "page", "cut"])
def test_a_damaged_file_is_named_and_left_where_it_is(path: Path, damage: str) -> None:
    with State.open(path) as state:
        fill(state, 400)
    content = path.read_bytes()
    if damage == "no database":
        path.write_bytes(b"hello" * 2000)
    elif damage == "page":
        path.write_bytes(content[: 4096 * 3] + os.urandom(4096 * 20) + content[4096 * 23 :])
    else:
        path.write_bytes(content[: len(content) // 2 // 4096 * 4096 + 100])
    before = digest(path)
    with pytest.raises(StateDamaged, match=str(path)) as error:
        State.open(path)
    assert "prep state backup" in error.value.next_step
    assert digest(path) == before
    state, problem = State.open_or_in_memory(path)
    assert isinstance(problem, StateDamaged) and state.path is None
    fill(state)
    assert state.count("attempt") == 3 and digest(path) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateUnavailable, match="file/state.sqlite3") as error:
        State.open(tmp_path / "file" / "state.sqlite3")
    assert "PREP_HOME" in error.value.next_step


def test_prep_home_moves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "elsewhere"))
    State.open().close()
    assert state_path() == tmp_path / "elsewhere" / "state.sqlite3" and state_path().exists()


def test_a_migration_keeps_the_facts_and_a_copy_from_before(path: Path) -> None:
    with State.open(path) as state:
        fill(state)
    longer = (
        *MIGRATIONS,
        "ALTER TABLE vote ADD COLUMN note TEXT;\nCREATE TABLE extra(id TEXT PRIMARY KEY);\n",
    )
    with State.open(path, migrations=longer) as state:
        assert state.connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA + 1
        assert len(state.attempts()) == 3
    with sqlite3.connect(path.parent / "backups" / f"state-schema{SCHEMA}.sqlite3") as copy:
        assert copy.execute("PRAGMA user_version").fetchone()[0] == SCHEMA
        assert copy.execute("SELECT count(*) FROM attempt").fetchone()[0] == 3


def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    with State.open(path) as state:
        fill(state)
    broken = (*MIGRATIONS, "CREATE TABLE extra(id TEXT PRIMARY KEY);\nALTER TABLE nowhere ADD COLUMN x;\n")
    with pytest.raises(StateUnavailable, match="nowhere"):
        State.open(path, migrations=broken)
    with State.open(path) as state:
        names = {row[0] for row in state.connection.execute("SELECT name FROM sqlite_master")}
        assert "extra" not in names and state.count("attempt") == 3


def test_one_copy_a_day_and_the_newest_seven(path: Path) -> None:
    with State.open(path) as state:
        fill(state)
        start = dt.date(2026, 1, 1)
        for day in range(10):
            assert backup.daily(state.connection, path, start + dt.timedelta(days=day)) is not None
            assert backup.daily(state.connection, path, start + dt.timedelta(days=day)) is None
        by_hand = backup.by_hand(state.connection, path, dt.datetime(2026, 1, 1, 12))
    names = sorted(p.name for p in (path.parent / "backups").iterdir())
    assert names == sorted([f"state-2026-01-{day:02}.sqlite3" for day in range(4, 11)] + [by_hand.name])


def test_opening_makes_todays_copy_once_there_is_something_to_lose(path: Path) -> None:
    State.open(path).close()
    State.open(path).close()
    assert backup.backups(path) == []
    with State.open(path) as state:
        fill(state)
    State.open(path).close()
    assert len(backup.backups(path)) == 1


# export and import


def export(state: State, target: Path) -> Path:
    archive.export(state, target)
    return target


def test_an_export_is_a_zip_of_jsonl_with_a_manifest(path: Path, tmp_path: Path) -> None:
    with State.open(path) as state:
        fill(state)
        counts = archive.export(state, tmp_path / "e.zip", "0.1")
    assert counts["attempt"] == 3 and set(counts) == set(FACTS)
    with zipfile.ZipFile(tmp_path / "e.zip") as file:
        manifest = json.loads(file.read("manifest.json"))
        assert manifest["schema"] == SCHEMA and manifest["files"]["attempt.jsonl"]["rows"] == 3
        assert len(file.read("attempt.jsonl").splitlines()) == 3


def test_import_adds_what_is_missing_and_twice_is_once(path: Path, tmp_path: Path) -> None:
    with State.open(path) as state, State.in_memory() as other:
        mine, theirs = fill(state, 2), fill(other, 3)
        file = export(other, tmp_path / "e.zip")
        assert archive.import_(state, file).added["attempt"] == 3
        again = archive.import_(state, file)
        assert again.added["attempt"] == 0 and again.known["attempt"] == 3
        assert {a.id for a in state.attempts()} == {a.id for a in mine + theirs}


def test_a_backup_can_be_imported_and_stays_what_it_is(path: Path, tmp_path: Path) -> None:
    with State.open(path) as state:
        fill(state)
        copy = backup.by_hand(state.connection, path, dt.datetime(2026, 1, 1))
    before = digest(copy)
    with State.open(tmp_path / "new.sqlite3") as fresh:
        assert archive.import_(fresh, copy).added["attempt"] == 3
    assert digest(copy) == before and list(copy.parent.glob("*-wal")) == []


def rewrite(source: Path, target: Path, change: dict[str, bytes | None], *, sign: bool = False) -> Path:
    """A copy of an export with other members; sign: as someone would who fakes the checksums too."""
    with zipfile.ZipFile(source) as old:
        members: dict[str, bytes] = {name: old.read(name) for name in old.namelist()}
    for name, content in change.items():
        if content is None:
            del members[name]
        else:
            members[name] = content
    if sign:
        manifest = json.loads(members["manifest.json"])
        for name in change:
            manifest["files"][name]["sha256"] = hashlib.sha256(members[name]).hexdigest()
        members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(target, "w") as new:
        for name, content in members.items():
            new.writestr(name, content)
    return target


def refused(state: State, file: Path, why: str) -> None:
    before = {table: state.count(table) for table in FACTS}
    with pytest.raises(ArchiveRefused, match=why) as error:
        archive.import_(state, file)
    assert str(file) in str(error.value) or "cannot read" in str(error.value)
    assert {table: state.count(table) for table in FACTS} == before


def test_a_damaged_archive_is_refused_before_anything_is_written(path: Path, tmp_path: Path) -> None:
    with State.in_memory() as other, State.open(path) as state:
        fill(other)
        good = export(other, tmp_path / "good.zip")
        content = good.read_bytes()
        bad = tmp_path / "bad.zip"
        refused(state, tmp_path / "none.zip", "it does not exist")
        for broken in (b"", b"hello", content[: len(content) // 2], content[:-30]):
            bad.write_bytes(broken)
            refused(state, bad, "refused")
        refused(state, rewrite(good, bad, {"attempt.jsonl": b""}), "checksum")
        refused(state, rewrite(good, bad, {"attempt.jsonl": None}), "attempt.jsonl")
        refused(state, rewrite(good, bad, {"manifest.json": b"{}"}), "format")


def test_a_flipped_byte_is_refused_or_did_not_matter(tmp_path: Path) -> None:
    with State.in_memory() as other:
        fill(other)
        content = export(other, tmp_path / "good.zip").read_bytes()
        bad = tmp_path / "bad.zip"
        refusals = 0
        for place in range(0, len(content), 41):
            bad.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
            with State.in_memory() as state:
                try:
                    archive.import_(state, bad)
                except ArchiveRefused:
                    refusals += 1
                    assert state.count("session") == 0
                else:
                    assert archive.facts(state) == archive.facts(other)
        assert refusals > 20


def test_an_archive_of_a_newer_schema_is_refused(path: Path, tmp_path: Path) -> None:
    with State.in_memory() as other, State.open(path) as state:
        fill(other)
        good = export(other, tmp_path / "good.zip")
        with zipfile.ZipFile(good) as file:
            manifest = {**json.loads(file.read("manifest.json")), "schema": SCHEMA + 1}
        refused(
            state,
            rewrite(good, tmp_path / "n.zip", {"manifest.json": json.dumps(manifest).encode()}),
            "newer prep",
        )


@pytest.mark.parametrize(
    ("table", "column", "value", "why"),
    [
        ("attempt", "at", "yesterday", "at cannot be"),
        ("attempt", "answer", "{not json", "answer cannot be"),
        ("attempt", "seed", "seven", "seed cannot be"),
        ("attempt", "seed", 1 << 70, "does not fit"),
        ("attempt", "rating", 9, "does not fit"),
        ("attempt", "question_id", None, "question_id cannot be"),
        ("attempt", "session_id", "01" + "A" * 24, "session .* is missing"),
        ("attempt", "id", "1", "not a key"),
        ("attempt", "extra", 1, "columns"),
        ("session", "spec", ["list"], "spec cannot be"),
    ],
)
def test_rows_that_could_not_be_read_again_are_refused(
    path: Path, tmp_path: Path, table: str, column: str, value: object, why: str
) -> None:
    with State.in_memory() as other, State.open(path) as state:
        fill(other)
        good = export(other, tmp_path / "good.zip")
        with zipfile.ZipFile(good) as file:
            rows = [json.loads(line) for line in file.read(f"{table}.jsonl").splitlines()]
        rows[0][column] = value
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        refused(state, rewrite(good, tmp_path / "bad.zip", {f"{table}.jsonl": text}, sign=True), why)


def test_one_key_with_two_contents_is_refused(path: Path, tmp_path: Path) -> None:
    with State.in_memory() as one, State.in_memory() as two, State.open(path) as state:
        session = one.begin_session("quiz")
        two.add(session)
        same = attempt(session.id)
        one.add(same)
        two.add(Attempt(**{**same.__dict__, "correct": False}))
        archive.import_(state, export(one, tmp_path / "one.zip"))
        refused(state, export(two, tmp_path / "two.zip"), "differs from the one")


def test_keys_sort_by_time_and_never_repeat() -> None:
    keys = [new_id() for _ in range(5000)]
    assert keys == sorted(set(keys)) and all(is_id(key) for key in keys)
    assert new_id(1_000) < new_id(2_000)
    assert not is_id("I" * 26) and not is_id(None)


def test_times_are_kept_to_the_millisecond() -> None:
    assert utc_now().microsecond % 1000 == 0
    with State.in_memory() as state:
        session = state.begin_session("quiz")
        with pytest.raises(ValueError, match="time zone"):
            state.add(attempt(session.id, at=dt.datetime(2026, 1, 1)))
