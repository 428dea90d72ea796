"""prep start, today, review, progress, state and the doctor's lines about them, driven as a person would."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.start import read_date, read_hours
from prep_common.paths import state_path
from quizzes.experiments.running import run_here
from quizzes.instance import draw
from quizzes.learning.review import AGAIN, GOOD, cards
from quizzes.learning.selection import due, local_now
from quizzes.question_bank import load_bank
from quizzes.state import Attempt, IntervalForecast, State, Vote
from quizzes.state.schema import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "batching.static_vs_continuous"
TODAY = dt.date(2026, 3, 2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "home"


def prep(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def ok(*args: str) -> str:
    done = prep(*args)
    assert done.exit_code == 0, done.output
    return done.stdout


def as_json(*args: str) -> dict[str, Any]:
    return dict(json.loads(ok(*args, "--json")))


def test_progress_shows_no_zeros_for_a_state_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    state_path().parent.mkdir(parents=True)
    state_path().write_bytes(b"garbage" * 2000)
    monkeypatch.setenv("PREP_COMMAND", "./prep")
    done = prep("progress")
    assert (done.exit_code, done.stdout) == (3, "") and "./prep state backup" in done.stderr


def script(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "answers.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def practised(days_ago: float = 5, count: int = 1, *, right: bool = True, confidence: int = 90) -> None:
    """Answers to one question of the real bank and, beyond the first, to its neighbours."""
    others = [entry.id for entry in load_bank() if entry.id != QUESTION]
    with State.open() as state:
        session = state.begin_session("quiz")
        for question_id in [QUESTION, *others][:count]:
            state.add(
                Attempt(
                    session.id, question_id, 1, 7, {}, float(right), 1.0, right, "experiment", confidence=confidence,
                    rating=GOOD if right else AGAIN, intervals=(IntervalForecast("a", 1, 2, 3 - 2 * right),),
                    at=local_now() - dt.timedelta(days=days_ago),
                )
            )  # fmt: skip


def answers_for_review(seed: int) -> list[str]:
    """Return the engine's answers for the numbers that a review with this seed draws."""
    with State.open() as state:
        (picked,) = due(load_bank(), state, seed=seed)
    instance = draw(load_bank().question(QUESTION), picked.seed)
    assert instance.question.experiment is not None
    expected = instance.expected(run_here(instance.question.experiment.run, instance.run_args()))
    return [str(expected["static"]), str(expected["continuous"])]


# start


def test_start_with_options_asks_nothing_and_keeps_them() -> None:
    soon = dt.date.today() + dt.timedelta(days=23)
    out = ok("start", "--role", "SRE", "--level", "senior", "--interview", soon.isoformat(), "--hours", "7")
    assert "60 min a day" in out
    with State.open() as state:
        settings = state.settings
    assert (settings.role, settings.level, settings.interview_date, settings.hours_per_week) == (
        "sre",
        "senior",
        soon,
        7,
    )


def test_start_asks_again_after_what_it_cannot_read_and_enter_keeps(tmp_path: Path) -> None:
    ok("start", "--hours", "9")
    lines = ("plumber", "kernel", "", "soon", "1999-01-01", "21", "", "s")
    done = prep("start", "--script", script(tmp_path, *lines))
    assert done.exit_code == 0, done.output
    assert (
        "unknown role 'plumber'" in done.stderr
        and "'soon' is not a date" in done.stderr
        and "past" in done.stderr
    )
    with State.open() as state:
        settings = state.settings
    assert (settings.role, settings.level, settings.hours_per_week) == ("kernel", None, 9)
    assert settings.interview_date == dt.date.today() + dt.timedelta(days=21)


def test_start_saves_nothing_at_the_end_of_standard_input() -> None:
    done = CliRunner().invoke(app, ["start"], input="platform\n")
    assert done.exit_code == 130, done.output
    with State.open() as state:
        assert state.settings.role is None


def test_what_was_said_before_leaving_holds(tmp_path: Path) -> None:
    ok("start", "--script", script(tmp_path, "platform", "q"))
    with State.open() as state:
        assert state.settings.role == "platform" and state.settings.interview_date is None


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--role", "plumber", "known: inference, kernel, platform, sre"),
        ("--level", "boss", "known: junior, mid, senior, staff"),
        ("--interview", "yesterday", "is not a date"),
        ("--interview", "2020-01-01", "is in the past"),
        ("--interview", "99999999", "too far away"),
        ("--interview", "0", "is today, which leaves nothing to plan"),
        ("--date", "2026-12-20", "use --interview 2026-12-20"),
        ("--hours", "-1", "more than 0 and at most 100"),
    ],
)
def test_options_that_make_no_sense_change_nothing(option: str, value: str, told: str) -> None:
    done = prep("start", option, value)
    assert done.exit_code == 2 and told in done.stderr
    assert as_json("state", "where").get("facts", {}).get("setting", 0) == 0


def test_dates_and_hours_are_read_as_people_write_them() -> None:
    assert read_date("21", TODAY) == dt.date(2026, 3, 23) == read_date("2026-03-23", TODAY)
    assert read_date(" None ", TODAY) is None
    with pytest.raises(ValueError, match="today"):
        read_date(TODAY.isoformat(), TODAY)
    assert read_hours("2,5") == read_hours("2.5 h") == 2.5
    for line in ("", "nan", "1e9", "inf", "0"):
        with pytest.raises(ValueError):
            read_hours(line)


def test_placement_asks_adaptively_and_says_where_to_begin(tmp_path: Path) -> None:
    lines = ["inference", "mid", "none", "5", "", *[":s"] * 12]
    found = as_json("start", "--seed", "3", "--script", script(tmp_path, *lines))
    placed = found["placement"]
    assert placed["answered"] == 12 and placed["correct"] == 0 and placed["difficulty"] == 1
    assert placed["begin_with"] in {topic["topic"] for topic in placed["topics"]}
    assert found["settings"]["role"] == "inference"
    with State.open() as state:
        (session,) = state.sessions("placement")
        assert session.ended is not None


def test_a_placement_that_was_left_counts_what_was_answered(tmp_path: Path) -> None:
    lines = ["sre", "mid", "none", "5", "", ":s", ":s", ":q"]
    assert as_json("start", "--script", script(tmp_path, *lines))["placement"]["answered"] == 2
    out = ok("start", "--script", script(tmp_path, "", "", "", "", "", ":s", ":q"))
    assert "0 of 1" in out and "not a grade" in out


# today


def test_today_says_what_is_due_and_what_to_do() -> None:
    practised(right=False, confidence=95)
    done = prep("today")
    assert "reviews due      1  1 surprise first" in done.stdout
    assert "mean confidence 95%, right 0%" in done.stdout and "next: prep review" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = as_json("today")
    assert found["due"] == found["surprises"] == 1 and found["calibration"]["n"] == 1


def test_today_of_a_newcomer_leads_to_the_first_question() -> None:
    done = prep("today")
    assert (
        "reviews due      0" in done.stdout
        and "prep start" in done.stdout
        and "next: prep quiz" in done.stderr
    )


def test_enter_starts_the_review_with_the_rest_of_the_script(tmp_path: Path) -> None:
    practised()
    out = ok("today", "--script", script(tmp_path, "", ":s"))
    assert "1 to review" in out and "skipped" in out


def test_keys_do_what_they_say(tmp_path: Path) -> None:
    practised()
    assert "readiness" in ok("today", "--script", script(tmp_path, "p"))
    assert "to review" not in ok("today", "--script", script(tmp_path, "q"))
    ok("today", "--script", script(tmp_path, "n", ":q"))
    with State.open() as state:
        (new,) = [session for session in state.sessions("quiz") if session.spec.get("items")]
        assert QUESTION not in {question_id for question_id, _ in new.spec["items"]}


def test_enter_asks_something_new_where_nothing_is_due(tmp_path: Path) -> None:
    ok("start", "--role", "kernel", "--level", "junior")
    assert "1/" in ok("today", "--script", script(tmp_path, "", ":q"))
    bank = load_bank()
    with State.open() as state:
        (session,) = state.sessions("quiz")
    asked = [bank.entries[question_id] for question_id, _ in session.spec["items"]]
    assert asked and all("kernel" in entry.roles and entry.difficulty <= 2 for entry in asked)


# review


def test_a_review_draws_new_figures_and_says_when_it_comes_back(tmp_path: Path) -> None:
    practised()
    answers = answers_for_review(3)
    out = ok("review", "--seed", "3", "--script", script(tmp_path, *answers, "80", ""))
    assert out.count("PASS") == 2 and "Good" in out and "in " in out
    with State.open() as state:
        first, second = state.attempts()
        assert second.seed != first.seed and state.sessions("review")
        assert cards(state)[QUESTION].reps == 2 and due(load_bank(), state) == []
    assert "no review is due; 1 question scheduled" in ok("review")


def test_a_review_that_is_left_keeps_the_rest_due(tmp_path: Path) -> None:
    practised(count=3)
    done = as_json("review", "--script", script(tmp_path, ":s", ":q"))
    assert not done["complete"] and done["summary"]["skipped"] == 1
    with State.open() as state:
        assert len(due(load_bank(), state)) == 3


def test_review_filters(tmp_path: Path) -> None:
    practised(days_ago=0, count=2, right=False, confidence=50)
    assert "no review is due" in ok("review", "--surprises")
    found = as_json("review", "--ahead", "2", "--missed", "--limit", "1", "--script", script(tmp_path, ":s"))
    assert found["summary"]["skipped"] == 1 and found["complete"]


def test_nothing_to_review_is_no_error() -> None:
    assert "nothing to review yet" in ok("review")
    assert as_json("review") == as_json("review") and as_json("review")["items"] == []


def test_a_question_forgotten_too_often_is_set_aside_and_taken_back() -> None:
    for days_ago in (9, 7, 5, 3, 1):
        practised(days_ago=days_ago, right=False, confidence=50)
    assert f"prep review --resume {QUESTION}" in ok("progress")
    assert "no review is due" in ok("review") or "nothing to review" in ok("review")
    prep("review", "--resume", QUESTION)
    with State.open() as state:
        assert not cards(state)[QUESTION].suspended
    assert prep("review", "--resume", "batching.nothing").exit_code == 2


# progress


def test_progress_shows_topics_calibration_and_a_formula() -> None:
    practised(count=12)
    done = prep("progress")
    assert "batching" in done.stdout and "readiness" in done.stdout and "coverage" in done.stdout
    assert "mean confidence 90%, right 100%" in done.stdout and "80% intervals contained 100%" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "calibration" not in ok("progress", "--topics")
    assert "coverage" not in ok("progress", "--calibration")
    found = as_json("progress")
    assert 0 < found["readiness"] < 100 and found["calibration"]["bins"][0]["n"] == 12


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    practised(count=12)
    file = tmp_path / "progress.html"
    ok("progress", "--html", str(file))
    page = Page()
    page.feed(file.read_text())
    assert "svg" in page.tags and not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not {"src", "href", "onclick"} & {name for name, _ in page.attributes}
    assert "batching" in file.read_text() and "polyline" in page.tags


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = prep("progress", "--html", str(tmp_path))
    assert done.exit_code == 3 and str(tmp_path) in done.stderr


# state


def test_where_names_the_file_and_its_contents(home: Path) -> None:
    assert "does not exist yet" in ok("state", "where") and not state_path().exists()
    practised(count=2)
    found = as_json("state", "where")
    assert found["path"] == str(home / "state.sqlite3") and found["facts"]["attempt"] == 2
    assert found["schema"] == SCHEMA
    with State.open() as state:  # a vote, then the same vote with its verdict
        state.add(Vote("S0-13", "confirmed", 80))
        state.add(Vote("S0-13", "confirmed", 80, "depends"))
    assert as_json("state", "where")["facts"]["vote"] == 1 and "1 vote\n" in ok("state", "where")


def test_answers_travel_to_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    practised(count=2)
    file = tmp_path / "mine.zip"
    assert "2 answers" in ok("state", "export", str(file))
    assert prep("state", "export", str(file)).exit_code == 2
    with State.open() as state:
        mine = cards(state)
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "desktop"))
    assert "2 answers added" in ok("state", "import", str(file))
    assert "0 answers added, 2 present" in ok("state", "import", str(file))
    with State.open() as state:
        assert cards(state) == mine


def test_rebuild_gives_the_same_cards() -> None:
    practised(count=3)
    assert as_json("state", "rebuild") == {"answers": 3, "cards": 3, "changed": 0}


def test_reset_needs_a_yes_and_keeps_the_old_file(home: Path) -> None:
    practised()
    assert prep("state", "reset").exit_code == 2 and state_path().exists()
    moved = Path(as_json("state", "reset", "--yes")["moved_to"])
    assert moved.exists() and not state_path().exists()
    assert "1 answer added" in ok("state", "import", str(moved))
    assert prep("state", "reset", "--yes").exit_code == 0
    assert prep("state", "reset", "--yes").exit_code == 1


def test_the_way_out_of_a_damaged_file_is_told_and_works(home: Path, tmp_path: Path) -> None:
    practised(count=2)
    copy = Path(as_json("state", "backup")["made"])
    state_path().write_bytes(b"not a database, " * 400)
    for command in (["state", "where"], ["state", "export", str(tmp_path / "x.zip")], ["state", "rebuild"]):
        done = prep(*command)
        assert done.exit_code == 3, done.output
        assert str(state_path()) in done.stderr and "next: prep state backup" in done.stderr
    listed = prep("state", "backup")
    assert listed.exit_code == 3 and str(copy) in listed.stdout
    assert f"prep state reset --yes && prep state import {copy}" in listed.stderr
    ok("state", "reset", "--yes")
    assert "2 answers added" in ok("state", "import", str(copy))


@pytest.mark.parametrize("command", [["today"], ["review"]])
def test_practice_goes_on_without_a_file_that_can_be_used(home: Path, command: list[str]) -> None:
    home.mkdir()
    state_path().write_bytes(b"not a database, " * 400)
    done = prep(*command)
    assert done.exit_code == 0 and "not saved" in done.stderr and str(state_path()) in done.stderr


def test_a_file_of_a_newer_version_is_refused_by_name() -> None:
    practised()
    with State.open() as state:
        state.connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = state_path().read_bytes()
    done = prep("state", "rebuild")
    assert done.exit_code == 3 and "newer prep" in done.stderr and "update prep" in done.stderr
    assert state_path().read_bytes() == before


def test_importing_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("hello")
    done = prep("state", "import", str(tmp_path / "x.zip"))
    assert done.exit_code == 3 and "was refused" in done.stderr and "nothing was imported" in done.stderr
    assert "BadZipFile" not in done.stderr and "makes an export" in done.stderr
    assert prep("state", "import", str(tmp_path / "none.zip")).exit_code == 2


def test_an_export_to_a_missing_folder_names_the_file(tmp_path: Path) -> None:
    target = tmp_path / "none" / "x.zip"
    done = prep("state", "export", str(target))
    words = " ".join(done.stderr.split())
    assert done.exit_code == 3 and f"cannot write {target}: No such file" in words
    assert ".part" not in words and "choose a file" in words


# doctor


def test_doctor_knows_the_parts_of_the_workbench(home: Path) -> None:
    from app.cli import doctor

    assert doctor._bank().status == "ok" and "questions" in doctor._bank().text
    assert "claims: " in doctor._claims().text
    assert "none yet" in doctor._state().text and not state_path().exists()
    practised(count=2)
    ok("state", "backup")
    assert f"schema {SCHEMA}, 2 attempts, backup 0 h old" in doctor._state().text
    assert doctor._worker().status == "ok"
    state_path().write_bytes(b"not a database, " * 400)
    assert doctor._state().status == "fail" and "prep state backup" in doctor._state().fix


def test_doctor_tells_whether_a_judge_is_set_and_counts(home: Path) -> None:
    from app.cli import doctor

    assert doctor._judge().text.startswith("judge: off")
    home.mkdir()
    (home / "judge.json").write_text(json.dumps({"url": "http://127.0.0.1:1/v1", "model": "m", "gate": None}))
    check = doctor._judge()
    assert check.status == "warn" and "not tested" in check.text and check.fix == "prep judge test"
    (home / "judge.json").write_text("{")
    assert doctor._judge().status == "warn" and doctor._judge().fix == "prep judge off"


# terminals


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain_terminals_get_plain_text(variables: dict[str, str]) -> None:
    practised(count=12)
    for command in ("today", "progress"):
        done = subprocess.run(
            [sys.executable, "-m", "app.cli.main", command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, **variables, "PYTHONPATH": str(ROOT), "FORCE_COLOR": ""},
        )
        assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr
