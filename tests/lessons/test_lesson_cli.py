"""`prep lesson`: what a learner types, and how it ends when something is wrong."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.exercises import show_solution
from app.cli.main import app
from lessons.course import progress, workspace
from lessons.course.lesson_files import find_lesson, lessons, solution
from lessons.course.notebook import ThisLesson
from quizzes.state import State

LESSON = find_lesson("07")
EXERCISE = "07.1"


def lesson(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["lesson", *words], input=input)


def write(source: str, exercise: str = EXERCISE) -> None:
    """Save a cell in the learner's notebook, as an editor would."""
    workspace.open_copy(LESSON)
    path = workspace.notebook_path(LESSON)
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        if cell["id"] == f"l07-{exercise.replace('.', '-')}":
            cell["source"] = source.splitlines(keepends=True)
    path.write_text(json.dumps(notebook))


def test_bare_it_says_what_is_next_and_how_to_open_it() -> None:
    found = lesson()
    assert found.exit_code == 0
    assert "0 of" in found.output and "lesson 01" in found.output and "prep lesson open 01" in found.output


def test_labs_do_not_count_as_exercises_of_lessons() -> None:
    for name in ("07.1", "07.2", "block-manager"):
        progress.record_check(name, "x", ok=True, num_passed=1, num_checks=1)
    assert lesson().output.startswith("2 of 48 exercises solved")


@pytest.mark.parametrize(
    ("answer", "options", "told"),
    [
        ("about three", (), "is a number (steps), not 'about three'"),
        (-3, (), "0 or more, not -3"),
        (True, (), "is a number"),
        (float("nan"), (), "is a number"),
        ([3], (), "is a number"),
        ("ttft", ("TTFT", "ITL"), "one of 'TTFT', 'ITL', not 'ttft'"),
        (3, ("TTFT", "ITL"), "one of 'TTFT', 'ITL'"),
    ],
)
def test_an_answer_that_no_run_can_judge_is_not_committed(
    answer: object, options: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    this = ThisLesson(LESSON)
    this.predict("most-at-once", answer, unit="steps", options=options)
    assert told in capsys.readouterr().out
    this.predict("most-at-once", options[0] if options else 12, unit="steps", options=options)
    assert "committed: " in capsys.readouterr().out


def test_a_prediction_after_the_run_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    this = ThisLesson(LESSON)
    this.reveal("most-at-once", 31)
    this.predict("most-at-once", 31, unit="requests")
    assert "no longer counts" in capsys.readouterr().out
    this.reveal("most-at-once", 31)
    assert "You made no prediction" in capsys.readouterr().out


def test_the_list_has_every_lesson_and_marks_what_is_solved() -> None:
    for name in LESSON.exercises:
        progress.record_check(name, "x", ok=True, num_passed=1, num_checks=1)
    rows = json.loads(lesson("list", "--json").output)
    assert len(rows) == len(lessons())
    assert {row["number"]: all(row["exercises"].values()) for row in rows}["07"] is True
    assert "3/3" in lesson("list").output


def test_open_makes_a_copy_and_prints_its_path() -> None:
    path = Path(lesson("open", "7", "--path").output.strip().splitlines()[-1])
    assert path == workspace.notebook_path(LESSON) and path.exists()
    assert json.loads(path.read_text())["metadata"]["kernelspec"]["name"] == "python3"


def test_a_stub_is_not_yet_written() -> None:
    lesson("open", "07", "--path")
    found = lesson("check", EXERCISE)
    assert found.exit_code == 1
    assert "not written yet" in found.output and f"prep lesson hint {EXERCISE}" in found.output
    assert "Traceback" not in found.output


def test_a_solution_passes_and_is_kept() -> None:
    write(solution(EXERCISE))
    found = lesson("check", EXERCISE)
    assert found.exit_code == 0, found.output
    assert "solved" in found.output
    assert progress.passed() == {EXERCISE}
    assert EXERCISE in workspace.learner_sources()


def test_a_solution_is_explained_once_it_passes_and_every_exercise_has_an_explanation() -> None:
    assert all(each.explain for found in lessons() for each in found.exercises.values())
    explained = LESSON.exercises[EXERCISE].explain
    write(solution(EXERCISE).replace("self._owners[block] += 1", "pass"))
    assert explained[:30] not in lesson("check", EXERCISE).output
    write(solution(EXERCISE))
    assert explained[:30] in lesson("check", EXERCISE).output


class _TerminalThatEnds(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_ctrl_d_at_the_question_shows_no_solution(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _TerminalThatEnds())
    show_solution(LESSON.exercises[EXERCISE], "lesson", yes=False)
    assert "class BlockAllocator" not in capsys.readouterr().out
    assert EXERCISE not in progress.exercise_progress()


def test_a_later_lesson_uses_the_piece_of_an_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert ThisLesson(find_lesson("08")).piece(EXERCISE).__name__ == "BlockAllocator"
    assert "the reference solution (07.1)" in capsys.readouterr().out
    write(solution(EXERCISE))
    assert lesson("check", EXERCISE).exit_code == 0
    ThisLesson(find_lesson("08")).piece(EXERCISE)
    assert "yours (07.1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class BlockAllocator(:\n", "SyntaxError in line 1"),
        ("x = 1\n", "does not define BlockAllocator"),
        ("1 / 0\n", "ZeroDivisionError in line 1"),
        ("class BlockAllocator:\n    pass\n", "FAIL|✗"),
        ("class BlockAllocator:\n    def __init__(self, n): self.num_free = float('nan')\n", "FAIL|✗"),
        ("import os\nos._exit(0)\n", "exit"),
    ],
)
def test_faulty_code_gets_a_sentence(source: str, said: str, tmp_path: Path) -> None:
    attempt = tmp_path / "attempt.py"
    attempt.write_text(source)
    found = lesson("check", EXERCISE, "--file", str(attempt))
    assert found.exit_code == 1
    assert any(word in found.output for word in said.split("|")), found.output
    assert "Traceback" not in found.output
    assert progress.passed() == set()


@pytest.mark.slow
def test_a_hang_ends_at_the_limit(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt.py"
    attempt.write_text("while True:\n    pass\n")
    found = lesson("check", EXERCISE, "--file", str(attempt))
    assert found.exit_code == 1 and "your code" in found.output


def test_hints_cost_points_and_a_solution_that_was_seen_earns_none() -> None:
    first, second = lesson("hint", EXERCISE).output, lesson("hint", EXERCISE).output
    assert "hint 1/3" in first and "hint 2/3" not in first and "hint 2/3" in second
    assert progress.exercise_progress()[EXERCISE].hints == 2
    shown = lesson("solution", EXERCISE, "--yes")
    assert "class BlockAllocator" in shown.output
    progress.record_check(EXERCISE, solution(EXERCISE), ok=True, num_passed=1, num_checks=1)
    with State.open() as state:
        ratings = [a.rating for a in state.attempts(question_id=f"lesson.{EXERCISE}") if a.rating is not None]
        points = [a.points for a in state.attempts(question_id=f"lesson.{EXERCISE}")]
    assert ratings == [1, 1] and max(points) == 0


def test_reset_keeps_the_old_notebook_and_diff_shows_what_changed() -> None:
    write("# exercise 07.1\nanswer = 42\n")
    assert "+answer = 42" in lesson("diff", EXERCISE).output
    found = lesson("reset", "07")
    assert found.exit_code == 0 and ".bak" in found.output
    assert "as they were given" in lesson("diff", "07").output
    assert any("answer = 42" in path.read_text() for path in workspace.folder().glob("*.bak.ipynb"))


def test_reset_refuses_an_exercise_and_keeps_the_notebook() -> None:
    write("# exercise 07.1\nanswer = 42\n")
    found = lesson("reset", "07.2")
    assert found.exit_code == 2 and "prep lesson reset 07" in found.output
    assert "answer = 42" in workspace.notebook_path(LESSON).read_text()


def test_an_exception_is_shown_with_the_call_that_raised_it(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt.py"
    attempt.write_text(solution(EXERCISE).replace("raise MemoryError", "raise KeyError"))
    found = lesson("check", EXERCISE, "--file", str(attempt))
    assert found.exit_code == 1
    assert "KeyError" in found.output and "smallest example: take(3)" in found.output


def test_watch_checks_what_is_saved() -> None:
    write(solution(EXERCISE))
    found = lesson("watch", EXERCISE, "--seconds", "0.5")
    assert "solved" in found.output and progress.passed() == {EXERCISE}


def test_a_lesson_in_place_of_an_exercise_is_answered_with_its_exercises() -> None:
    asked = lesson("hint", "06")
    assert asked.exit_code == 2
    assert "'06' is a whole lesson; name one of its exercises: 06.1, 06.2, 06.3" in asked.output
    assert "did you mean" not in asked.output


@pytest.mark.parametrize("words", [["check", "99"], ["hint", "07.9"], ["open", "x"], ["reset", "0"]])
def test_what_does_not_exist_is_named_with_what_does(words: list[str]) -> None:
    found = lesson(*words)
    assert found.exit_code == 2 and "07" in found.output and "Traceback" not in found.output


def test_a_damaged_notebook_is_a_sentence() -> None:
    workspace.open_copy(LESSON)
    workspace.notebook_path(LESSON).write_text("{")
    for words in (["open", "07", "--path"], ["check", EXERCISE]):
        found = lesson(*words)
        assert found.exit_code == 2 and "prep lesson reset" in found.output


def test_the_quiz_of_a_lesson_asks_what_it_unlocks(tmp_path: Path) -> None:
    script = tmp_path / "answers.txt"
    script.write_text("s\n" * 40)
    found = CliRunner().invoke(app, ["quiz", "--stage", "L07", "--script", str(script), "--json"])
    asked = {item["question_id"] for item in json.loads(found.output)["items"]}
    assert asked and asked <= set(LESSON.unlocks)
