"""prep plan: options, what it asks, what it prints and writes."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.mock.choosing import Wanted, specify
from prep_common.paths import state_path
from quizzes.question_bank import load_bank
from quizzes.state import Attempt, State


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tests here: it holds the compiled questions."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def home(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(shared))
    monkeypatch.setenv("COLUMNS", "80")
    for old in shared.glob("state.sqlite3*"):
        old.unlink()


def plan(*args: str) -> Result:
    return CliRunner().invoke(app, ["plan", *args])


def test_a_plan_fits_the_screen_and_its_options_are_saved(tmp_path: Path) -> None:
    done = plan("--interview", "12", "--hours", "5", "--role", "sre", "--level", "senior")
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80 and len(done.stdout.splitlines()) <= 40
    assert (
        done.stdout.count(" > ") == 1 and "mock interview 60 min" in done.stdout and "left out" in done.stdout
    )
    with State.open() as state:
        settings = state.settings
    assert (settings.role, settings.level, settings.hours_per_week) == ("sre", "senior", 5)
    ics, boxes = tmp_path / "plan.ics", tmp_path / "plan.md"
    found = json.loads(plan("--json", "--ics", str(ics), "--at", "07:30", "--markdown", str(boxes)).stdout)
    busy = [day for day in found["days"] if day["tasks"]]
    assert len(found["days"]) == 12 and ics.read_bytes().count(b"BEGIN:VEVENT\r\n") == len(busy) + 1
    assert boxes.read_text().count("- [ ] ") == sum(len(day["tasks"]) for day in busy)
    shown = CliRunner().invoke(app, ["today"]).stdout
    assert f"plan {found['days'][0]['minutes']:13.0f}  min: " in shown


def test_start_today_and_plan_name_the_same_numbers() -> None:
    with State.open() as state:
        at = dt.datetime.now(dt.UTC) - dt.timedelta(days=20)
        session = state.begin_session("quiz")
        for entry in list(load_bank())[:30]:
            state.add(Attempt(session.id, entry.id, 1, 0, {}, 1.0, 1.0, True, "exact", rating=3, at=at))
    args = ["start", "--role", "inference", "--interview", "23", "--hours", "5", "--no-placement"]
    shown = CliRunner().invoke(app, args).stdout
    found = json.loads(plan("--json").stdout)
    new, reviews = (
        [sum(task["count"] for task in day["tasks"] if task["kind"] == kind) for day in found["days"]]
        for kind in ("new", "review")
    )
    assert sum(reviews) > 0 < sum(new[:7])  # not of today alone: a plan leaves Sundays free
    told = json.loads(CliRunner().invoke(app, ["today", "--json"]).stdout)["plan"]
    assert (told["new"], told["reviews"]) == (new, reviews)
    assert (found["questions"]["new"], found["questions"]["reviews"]) == (new, reviews)
    assert (told["new_today"], told["new_per_week"], told["new_total"]) == (new[0], sum(new[:7]), sum(new))
    assert (
        f": {sum(new)} new questions, about {told['recalled']:.0f} recalled on the interview day\n" in shown
    )
    weeks = [line for line in shown.splitlines() if line.startswith(" week")]
    assert len(weeks) == 4 and all(len(line) <= 80 for line in weeks)
    assert f"new {sum(new[:7]):4} " in weeks[0] and f"reviews {sum(reviews[:7]):4} " in weeks[0]
    assert all(line in plan().stdout for line in weeks)
    today = CliRunner().invoke(app, ["today"]).stdout
    assert f" new {new[0]:14}  {sum(new[:7])} in the next 7 days" in today


def test_an_applied_engineer_has_a_plan_and_a_mock_interview() -> None:
    shown = plan("--interview", "12", "--hours", "5", "--role", "applied", "--level", "staff")
    assert shown.exit_code == 0 and "applied or staff engineer, staff" in shown.stdout
    assert sum(json.loads(plan("--json").stdout)["questions"]["new"]) > 10
    spec = specify(Wanted(seed=1))
    assert (spec.role, spec.level) == ("applied", "staff")


def test_a_far_interview_has_a_line_per_later_week() -> None:
    done = plan("--interview", "100")
    assert done.exit_code == 0 and "reviews" in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    first = lines.index(" later weeks, by their first day") + 1
    later = lines[first : lines.index("", first)]
    weeks = [line for line in later if " h  " in line]  # long ones go on in the next line
    assert 11 <= len(weeks) <= 13  # 100 days less the first three weeks
    assert all(line in weeks or line.startswith(" " * 17) for line in later)


def test_a_script_is_told_that_the_date_is_missing(tmp_path: Path) -> None:
    done = plan("--hours", "5")
    assert (
        done.exit_code == 2
        and "no interview date is set" in done.stderr
        and "prep plan --interview" in done.stderr
    )
    answers = tmp_path / "answers.txt"
    answers.write_text("kernel\nmid\n9\n4\n")
    done = plan("--script", str(answers))
    assert done.exit_code == 0 and "9 days to the interview" in done.stdout


def test_a_stored_date_in_the_past_is_asked_for_again() -> None:
    with State.open() as state:
        state.change_settings(interview_date=dt.date.today() - dt.timedelta(days=2))
    done = plan()
    assert done.exit_code == 2 and "has passed" in done.stderr
    told = CliRunner().invoke(app, ["today"])
    assert told.exit_code == 0 and "has passed" in told.stdout and "prep plan --interview" in told.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--interview", "2020-01-01"), "is in the past"),
        (("--interview", "0"), "is today, which leaves nothing to plan"),
        (("--interview", "soon"), "is not a date"),
        (("--interview", "5", "--hours", "0"), "more than 0 and at most 100"),
        (("--interview", "5", "--hours", "nan"), "more than 0 and at most 100"),
        (("--interview", "5", "--role", "plumber"), "known: inference"),
        (("--interview", "5", "--at", "25:00"), "is not a time"),
    ],
)
def test_bad_options_change_nothing(args: tuple[str, ...], told: str) -> None:
    done = plan(*args)
    assert done.exit_code == 2 and told in done.stderr and done.stdout == ""
    with State.open() as state:
        assert state.settings.interview_date is None


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = plan("--interview", "3", "--ics", str(tmp_path))
    assert done.exit_code == 3 and str(tmp_path) in done.stderr


def test_a_state_of_a_newer_version_is_not_planned_from() -> None:
    State.open().close()
    with sqlite3.connect(state_path()) as connection:
        connection.execute("PRAGMA user_version = 999")
    done = plan("--interview", "12")
    assert (done.exit_code, done.stdout) == (3, "") and "newer prep" in done.stderr


def test_the_day_of_the_interview() -> None:
    with State.open() as state:
        state.change_settings(interview_date=dt.date.today())
    done = plan()
    assert (
        done.exit_code == 0
        and "the interview is today" in done.stdout
        and "prep review --surprises" in done.stderr
    )
