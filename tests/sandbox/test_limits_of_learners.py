"""Each place that runs learner code holds it to the limits of the READMEs, and blames no learner for the machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli.quiz import code as quiz
from interview.mock import coding
from interview.mock.scenario import Code
from lessons.course.checking import run_checks
from lessons.labs.racing import racer
from prep_common.sandbox.nursery import START_SECONDS
from quizzes.question import Code as Program

NO_START = f"the process for your code did not start within {START_SECONDS:g} s; none of your code ran"


def in_a_lesson(folder: Path) -> list[str]:
    return [run_checks("09.1", "def f(): pass").problem]


def in_a_lab(folder: Path) -> list[str]:
    return [run_checks("block-manager", "def f(): pass").problem]


def in_a_bug_hunt(folder: Path) -> list[str]:
    report = run_checks("mend-block-manager", "def f(): pass")
    return [report.problem] if report.problem else [result.why for result in report.results]


def in_a_mock_round_on_a_lab(folder: Path) -> list[str]:
    return [coding.check(Code(lab="block-manager"), "def f(): pass").problem]


def in_a_mock_round_on_a_program(folder: Path) -> list[str]:
    return [why[0] for _, _, why in coding.check(Code(program="block_manager"), "def f(): pass").checks]


def in_a_quiz(folder: Path) -> list[str]:
    path = folder / "program.py"
    path.write_text("def f(): pass", encoding="utf-8")
    found = quiz._check(SimpleNamespace(quiet=True), Program(folder="block_manager"), path)
    assert found is not None
    return [result.why for result in found]


PLACES = [
    in_a_lesson,
    in_a_lab,
    in_a_bug_hunt,
    in_a_mock_round_on_a_lab,
    in_a_mock_round_on_a_program,
    in_a_quiz,
]
everywhere = pytest.mark.parametrize("problems", PLACES)
Problems = Callable[[Path], list[str]]


@everywhere
def test_a_file_that_loads_for_more_than_five_seconds_is_stopped_once(
    problems: Problems, clock: SimpleNamespace, tmp_path: Path
) -> None:
    clock.per_answer = 5.1
    first, *others = problems(tmp_path)
    assert first == "your code stopped after 5 s while loading the file"
    assert set(others) <= {"not run: your code was stopped 1 time before"}


@everywhere
def test_a_call_of_more_than_two_seconds_is_stopped(
    problems: Problems, clock: SimpleNamespace, tmp_path: Path
) -> None:
    clock.per_answer = 2.1
    first, *_ = problems(tmp_path)
    assert first == "your code stopped after 2 s in one call"


@everywhere
def test_a_process_that_does_not_start_is_not_the_learners_fault(
    problems: Problems, clock: SimpleNamespace, tmp_path: Path
) -> None:
    clock.per_answer = START_SECONDS + 1
    first, *others = problems(tmp_path)
    assert first.startswith(NO_START)
    assert set(others) <= {"not run: the process for your code did not start"}


def test_a_call_of_a_race_is_stopped_after_ten_seconds(clock: SimpleNamespace) -> None:
    with racer("def f(): pass") as guest:
        clock.per_answer = 10.1
        with pytest.raises(Exception, match="^stopped after 10 s in one call$"):
            guest.call("f")
