"""A hostile file of a lab ends in a sentence, and none passes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.child_process import ROOT
from lessons.course import checking, progress
from lessons.course.lesson_files import find_lab
from tests.sandbox.hostile import AGAINST_A_LAB, AS_A_LAB, IS_STOPPED, PRELUDE, RETURNS_SOMETHING_ELSE

LAB = find_lab("block-manager")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.write_text("answers")
    return path


def submit(source: str, secret: Path) -> checking.Report:
    text = PRELUDE.format(root=str(ROOT), host=os.getpid(), secret=str(secret)) + source + AS_A_LAB
    return checking.run_checks(LAB.number, text, only="blocks_are_distinct")


def is_refused(report: checking.Report) -> None:
    """Assert that the verdict is a sentence of bounded length, and that nothing got out."""
    told = report.problem or " ".join(result.why for result in report.results)
    assert not report.ok and told.strip()
    assert len(told) < 1_000 and len(report.output) < 3_000 and "Traceback" not in told
    assert "'escaped'" not in told
    assert progress.passed() == set()


@pytest.mark.parametrize("name", [*RETURNS_SOMETHING_ELSE, *AGAINST_A_LAB])
def test_an_attack_does_not_pass(name: str, secret: Path) -> None:
    is_refused(submit((RETURNS_SOMETHING_ELSE | AGAINST_A_LAB)[name], secret))
    assert secret.read_text() == "answers"


@pytest.mark.slow
@pytest.mark.parametrize("name", IS_STOPPED)
def test_what_never_answers_is_stopped(name: str, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soon = LAB.exercise.model_copy(update={"seconds": 1.0})
    monkeypatch.setattr(checking, "find_exercise", lambda _: (LAB, soon))
    monkeypatch.setattr(checking, "MEGABYTES", 300)
    is_refused(submit(IS_STOPPED[name][0], secret))
