"""A full disk and a damaged state: nothing that is not saved looks saved, and every hint can be followed."""

from __future__ import annotations

import json
import re
import resource
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.main import app
from lessons.course.lesson_files import find_lesson, solution
from lessons.course.notebook import ThisLesson
from lessons.course.questions import InlineQuestion
from lessons.course.say import SayIt
from prep_common.paths import backup_folder, state_path
from quizzes.state import Attempt, State, StateError, StateUnavailable

FILE_BYTES = 20_000
"""Less than the log of the state takes, more than a learner's source."""
EXERCISE, LAB = "07.1", "block-manager"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREP_LESSONS", str(tmp_path / "lessons"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, str]:
    """Right files by exercise."""
    found = {}
    for name in (EXERCISE, LAB):
        found[name] = str(tmp_path / f"{name}.py")
        Path(found[name]).write_text(solution(name))
    return found


@contextmanager
def full_disk(most: int = FILE_BYTES) -> Iterator[None]:
    """A limit on the size of files fails in the middle of a write, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def prep(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def practise(count: int = 3) -> None:
    with State.open() as state:
        session = state.begin_session("quiz")
        for seed in range(count):
            state.add(
                Attempt(session.id, "batching.static_vs_continuous", 1, seed, "a", 1.0, 1.0, True, "exact")
            )
        state.end_session(session.id)


def damage() -> None:
    for end in ("-wal", "-shm"):
        state_path().with_name(state_path().name + end).unlink(missing_ok=True)
    state_path().write_bytes(b"not a database, " * 400)


def num_answers() -> int:
    with State.open() as state:
        return state.count("attempt")


# --- nothing that is not saved looks saved ---------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["a full disk", "a damaged file"])
def test_a_check_that_passes_says_that_it_is_not_saved_and_fails(
    trouble: str, source: dict[str, str]
) -> None:
    practise()
    if trouble == "a damaged file":
        damage()
    for command, name in (("lesson", EXERCISE), ("lab", LAB)):
        words = [command, "check", name, "--file", source[name]]
        with full_disk() if trouble == "a full disk" else open("/dev/null"):
            done, as_json = prep(*words), prep(*words, "--json")
        assert done.exit_code == as_json.exit_code == 3, done.output
        assert "solved" in done.stdout and "not saved" in done.stderr and str(state_path()) in done.stderr
        [report] = [json.loads(as_json.stdout)] if command == "lab" else json.loads(as_json.stdout)
        assert report["ok"] and not report["is_saved"]
    if trouble == "a full disk":
        assert num_answers() == 3
        assert prep("lesson", "check", EXERCISE, "--file", source[EXERCISE]).exit_code == 0
        assert num_answers() == 4


def test_a_solution_is_shown_and_said_not_to_be_counted() -> None:
    practise()
    with full_disk():
        done = prep("lesson", "solution", EXERCISE, "--yes")
    assert done.exit_code == 3 and "def " in done.stdout and "not saved" in done.stderr


@pytest.mark.parametrize(("command", "name"), [("lesson", EXERCISE), ("lab", LAB)])
def test_a_hint_is_shown_and_said_not_to_be_counted(command: str, name: str) -> None:
    practise()
    with full_disk():
        done = prep(command, "hint", name)
    assert done.exit_code == 3 and "hint 1/" in done.stdout and "this hint is not saved" in done.stderr
    assert "hint 1/" in (again := prep(command, "hint", name)).stdout and "hint 2/" not in again.stdout


def test_a_plan_that_cannot_be_saved_says_what_where_and_what_to_do() -> None:
    practise()
    with full_disk():
        done = prep("plan", "--interview", "21", "--hours", "5", "--role", "sre", "--level", "senior")
    words = " ".join(done.stderr.split())
    assert done.exit_code == 3
    assert f"nothing can be saved in the learner state {state_path()}" in words and "File too large" in words
    assert "next: free some disk space, or use another folder: PREP_HOME=" in words


def test_progress_of_lessons_is_no_list_of_zeros_if_the_file_is_damaged() -> None:
    practise()
    damage()
    for words in (["lesson"], ["lesson", "list"], ["lab"]):
        done = prep(*words)
        assert done.exit_code == 3 and "0 of" not in done.stdout and "is damaged" in done.stderr, words


def test_a_notebook_goes_on_and_says_that_nothing_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    practise()
    this = ThisLesson(find_lesson("07"))
    damage()
    this.predict("waste", 15, unit="slots")
    this.hint(EXERCISE)
    this.piece(EXERCISE)
    said = capsys.readouterr().out
    assert said.count("Nothing is saved: ") >= 3 and "committed: 15" in said and "hint 1 of" in said
    probes = ["?"] * len(this.lesson.say.probes)
    assert SayIt(this.lesson).answer("prose", probes).startswith("Your answer is not saved: ")
    question = InlineQuestion("scheduling.chunks_beside_decodes", seed=1)
    assert "**This answer is not saved**" in question.answer(dict.fromkeys(question.keys, "1"))


# --- reading works, and the cause is told ----------------------------------------------------------------------


def test_answers_can_be_read_and_exported_from_a_full_disk(tmp_path: Path) -> None:
    practise()
    with full_disk():
        with pytest.raises(StateUnavailable):
            State.open()
        assert "3 answers" in prep("state", "where").stdout
        assert prep("progress", "--topics").exit_code == 0
        done = prep("state", "export", str(tmp_path / "mine.zip"))
    assert done.exit_code == 0 and "3 answers" in done.stdout
    assert prep("state", "reset", "--yes").exit_code == 0
    assert "3 answers added" in prep("state", "import", str(tmp_path / "mine.zip")).stdout


def test_a_disk_that_was_full_before_the_first_answer_shows_what_needs_no_answer() -> None:
    state_path().parent.mkdir(parents=True)
    state_path().touch()  # as SQLite leaves it
    with full_disk(0):
        for words in (["lab"], ["lesson"], ["progress"], ["state", "where"]):
            done = prep(*words)
            assert done.exit_code == 0 and "nothing can be saved" not in done.output, done.output
        begun = prep("mock", "start", "--role", "inference", "--level", "senior")
    words = " ".join(begun.stderr.split())
    assert begun.exit_code != 0 and words.count("nothing can be saved in the learner state") == 1
    assert "next: free some disk space, or use another folder: PREP_HOME=/some/folder prep ..." in words


def test_a_full_disk_is_named_as_the_cause() -> None:
    practise()
    with full_disk():
        for words in (["state", "rebuild"], ["plan"], ["state", "backup"]):
            done = prep(*words)
            assert done.exit_code == 3 and "File too large" in done.stderr, done.stderr


def test_reading_from_a_full_disk_changes_nothing() -> None:
    practise()
    before = state_path().read_bytes()
    with full_disk(), State.open_to_read() as state, pytest.raises(StateError):
        state.begin_session("quiz")
    assert state_path().read_bytes() == before and num_answers() == 3


# --- every hint can be followed where it is given --------------------------------------------------------------


def follow(done: Result) -> list[Result]:
    """Run the commands of the first `next:` line, in order, while they succeed."""
    hint, *_ = re.findall(r"^next: (.+)", done.output.replace("\n      ", " "), re.MULTILINE)
    commands, results = hint.split("  ")[0].split(" && "), []
    for command in commands:
        first, *words = shlex.split(command)
        assert first == "prep", hint
        results.append(prep(*words))
        if results[-1].exit_code != 0:
            break
    return results


def test_the_hints_for_a_damaged_file_bring_back_the_newest_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    practise(2)
    prep("state", "backup")
    practise(1)
    damage()
    for words in (["state", "where"], ["state", "export", "x.zip"], ["lesson"], ["today"]):
        [listed] = follow(prep(*words))
    assert listed.exit_code == 3 and "is damaged" in listed.stderr
    assert all(each.exit_code == 0 for each in follow(listed)) and num_answers() == 2


def test_the_hint_for_a_damaged_file_without_a_copy_starts_anew_and_keeps_it(home: Path) -> None:
    practise()
    for copy in backup_folder(state_path()).glob("*"):
        copy.unlink()
    damage()
    listed = prep("state", "backup")
    assert listed.exit_code == 3 and "import" not in listed.stderr
    [reset] = follow(listed)
    assert reset.exit_code == 0 and len(list(home.glob("state-until-*"))) == 1


def test_no_hint_resets_a_file_that_is_intact(home: Path) -> None:
    """A full disk, a folder for copies that cannot be written, a file of a newer version."""
    practise()
    with full_disk():
        done = prep("state", "backup")
    assert done.exit_code == 3 and "state reset" not in done.output
    backup_folder(state_path()).mkdir(parents=True, exist_ok=True)
    for copy in backup_folder(state_path()).glob("*"):
        copy.unlink()
    backup_folder(state_path()).rmdir()
    backup_folder(state_path()).write_text("a file")
    done = prep("state", "backup")
    assert done.exit_code == 3 and "is intact" in done.stderr and "state reset" not in done.output
    assert "no answers" not in done.stdout and num_answers() == 3
    with State.open() as state:
        state.connection.execute("PRAGMA user_version = 1000")
    done = prep("state", "backup")
    assert done.exit_code == 3 and "update prep" in done.stderr and "state reset" not in done.output


def test_a_reset_that_is_undone_as_its_hint_says_has_all_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    practise()
    done = prep("state", "reset", "--yes")
    undo = re.search(r"to undo: prep (state import \S+)", done.output)
    assert undo and prep(*undo[1].split()).exit_code == 0 and num_answers() == 3


def test_a_reset_of_a_damaged_file_names_no_way_back() -> None:
    practise()
    damage()
    done = prep("state", "reset", "--yes")
    assert done.exit_code == 0 and "undo" not in done.output
