"""A hostile file of a lab ends in a sentence, and none passes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lessons.course import checking, progress
from lessons.course.lesson_files import FOLDER, Lab, find_exercise, find_lab, labs
from prep_common.child_process import ROOT
from quizzes.autopsies.programs import LIMITS, MAX_STOPS
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


def test_texts_and_code_agree_on_the_limit_of_a_call() -> None:
    slow = checking.SLOW_CALLS
    assert slow.keys() < {lab.language for lab in labs()} and len(set(slow.values())) == 1
    one, kernels = LIMITS.call_seconds, slow["triton"]
    said = (
        f"A call that takes longer than {one:g} s is stopped, and so is a file that takes longer than "
        f"{LIMITS.load_seconds:g} s to load; {kernels:g} s for both in Triton and on the host shim of CUDA"
    )
    assert MAX_STOPS == 2
    for page in (FOLDER / "README.md", FOLDER / "labs" / "README.md"):
        text = " ".join(page.read_text(encoding="utf-8").split())
        assert said in text and "After two stops the other checks do not run" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", [LAB.number, "07.1", "mend-scheduler"])
def test_an_endless_loop_is_stopped_at_the_limit_of_a_call(name: str) -> None:
    lesson, exercise = find_exercise(name)
    endless = "".join(
        f"class {each}:\n    def __init__(self, *args, **names):\n        while True: pass\n"
        for each in exercise.objects
    )
    results = checking.run_checks(lesson.number if isinstance(lesson, Lab) else name, endless).results
    assert results[0].why.endswith(f"stopped after {LIMITS.call_seconds:g} s in one call")


@pytest.mark.parametrize("is_patient", [False, True])
def test_a_patient_run_of_the_checks_goes_on_after_any_number_of_stops(is_patient: bool) -> None:
    ends = "import os\nclass BlockManager:\n    def __init__(self, *args): os._exit(3)\n"
    results = checking.run_checks(LAB.number, ends, is_patient=is_patient).results
    not_run = [result.why for result in results if result.why.startswith("not run")]
    assert len(results) > MAX_STOPS and len(not_run) == (0 if is_patient else len(results) - MAX_STOPS)


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


@pytest.mark.parametrize("returned", ["[7] * (k + 1)", "[-1]"])
def test_drafts_that_stop_the_engine_fail_the_check(returned: str) -> None:
    source = f"""
class NgramDrafter:
    def __init__(self, min_n, max_n): pass
    def extend(self, tokens): pass
    def propose(self, k): return {returned}
"""
    [result] = checking.run_checks("ngram-drafter", source, only="the_engine_drafts_with_it").results
    assert not result.ok and result.why.startswith("the drafts are ["), result
