"""`prep lab`: every lab is complete, its checks reject its mutants, and any file ends in a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.lab_interview import hold
from app.cli.main import app
from lessons.course import progress, workspace
from lessons.course.checking import fewest, run_checks
from lessons.course.lesson_files import Lab, UnknownLesson, find_lab, labs, solution, stub
from lessons.course.mutants import mutants
from quizzes.question_bank import load_bank
from quizzes.topics import TOPICS
from tests.lessons.test_lesson_files import shapes

EVERY = pytest.mark.parametrize("each", labs(), ids=lambda each: each.number)
LAB = find_lab("block-manager")


def lab(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["lab", *words], input=typed)


def save(text: str | bytes) -> Path:
    path = workspace.open_lab(LAB).path
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def seams(each: Lab, text: str) -> list[object]:
    """Return the signatures of what the learner writes."""
    if each.file_name.endswith(".py"):
        return [shapes(text)[name] for name in each.exercise.objects]
    return [
        re.findall(rf"^extern .*?\b{name}\([^)]*\)", text, re.MULTILINE) for name in each.exercise.objects
    ]


@EVERY
def test_its_files_are_complete(each: Lab) -> None:
    bank = load_bank()
    assert [name for name in each.unlocks if name not in bank] == []
    assert [topic for topic in each.topics if topic not in TOPICS] == []
    assert len(each.follow_ups) >= 5 and all(question and more for question, more in each.follow_ups)
    given, ours = (seams(each, text) for text in (stub(each, each.number), solution(each.number)))
    assert given == ours and len(given) == len(each.exercise.objects)
    found = mutants(each)
    assert len(found) >= 5 and len({mutant.why for mutant in found}) == len(found)


@pytest.mark.parametrize(
    "each",
    [
        pytest.param(each, id=each.number, marks=pytest.mark.slow if each.language == "triton" else [])
        for each in labs()
    ],
)
def test_the_solution_passes_and_the_stub_is_not_yet_written(each: Lab) -> None:
    report = run_checks(each.number, solution(each.number))
    assert report.ok, (report.problem, [result for result in report.results if not result.ok])
    report = run_checks(each.number, stub(each, each.number))
    assert report.is_stub and "not written yet" in report.problem


@pytest.mark.parametrize(
    "each",
    [pytest.param(each, id=each.number, marks=[] if each is LAB else pytest.mark.slow) for each in labs()],
)
def test_every_mutant_is_caught_by_the_check_it_names(each: Lab) -> None:
    for mutant in mutants(each):
        report = run_checks(mutant.exercise, mutant.source, only=mutant.check)
        assert report.results, f"{mutant.check}: there is no such check, or {report.problem}"
        assert not report.results[0].ok, f"{mutant.check} accepts: {mutant.why}"


def test_a_failure_is_cut_to_the_fewest_calls() -> None:
    wrong = next(each for each in mutants(LAB) if each.check == "random_families")
    [result] = run_checks(LAB.number, wrong.source, only=wrong.check).results
    assert 2 <= result.example.count("(") - 1 <= 4, result.example
    assert fewest(list(range(40)), lambda some: 7 in some and 31 in some) == [7, 31]


def test_a_learner_makes_a_file_solves_it_and_is_led_on() -> None:
    listed = lab()
    assert listed.exit_code == 0 and "Track memory" in listed.output
    made = lab("new")
    assert str(workspace.lab_path(LAB)) in made.output.replace("\n", "")
    path = workspace.lab_path(LAB)
    assert path.read_text() == stub(LAB, LAB.number)
    assert "not written yet" in lab("watch", "block-manager", "--seconds", "0.1").output
    save(solution(LAB.number))
    assert lab("new", "block-manager").exit_code == 0 and path.read_text() == solution(LAB.number)
    checked = lab("check")
    assert checked.exit_code == 0 and "11 of 11 checks pass" in checked.output
    assert "memory.block_tables" in checked.output and progress.passed() == {"block-manager"}
    rows = json.loads(lab("list", "--json").stdout)
    assert [row["name"] for row in rows if row["solved"]] == ["block-manager"]
    assert f"prep lab new {labs()[1].number}" in lab("list").output


def test_hints_grow_and_the_solution_counts_as_seen() -> None:
    first, second = lab("hint", "block-manager").output, lab("hint", "block-manager").output
    assert "hint 1/3" in first and "hint 2/3" not in first and "hint 2/3" in second
    assert "class BlockManager" in lab("solution", "block-manager", "--yes").output
    seen = progress.exercise_progress()["block-manager"]
    assert seen.hints == 2 and seen.seen and not seen.passed


def test_reset_keeps_the_old_file() -> None:
    path = save("mine = 1\n")
    assert lab("reset", "block-manager").exit_code == 0
    assert path.read_text() == stub(LAB, LAB.number)
    [backup] = path.parent.glob("block_manager.*.bak.py")
    assert backup.read_text() == "mine = 1\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "does not define BlockManager"),
        ("class BlockManager(:\n", "SyntaxError in line 1"),
        ("\tx = 1\n", "IndentationError"),
        ("import os\nos._exit(0)\n", "ended itself"),
        ("raise SystemExit('done')\n", "block-manager: "),
        (b"\xff\xfe\x00\x00", "UTF-8"),
        ("x = 1\0\n", "block-manager: "),
        ("for _ in range(10**5): print('flood' * 100)\n", "does not define BlockManager"),
        ("import subprocess\nsubprocess.run(['true'])\n", "PermissionError"),
        (f"open({str(LAB.folder / 'solution.py')!r})\n", "PermissionError"),
        ("import lessons.labs.block_manager.solution\n", "block-manager: "),
        (
            "class BlockManager:\n    num_free = 0\n    def __init__(self, *a): pass\n"
            "    def __getattr__(self, name): return lambda *a: float('nan')\n",
            "0 of 11",
        ),
    ],
)
def test_a_faulty_file_gets_a_sentence(source: str | bytes, said: str) -> None:
    save(source)
    found = lab("check", "block-manager")
    assert found.exit_code not in (0, None) and said in found.output, found.output
    assert "Traceback" not in found.output and len(found.output) < 8_000
    assert progress.passed() == set()


def test_line_ends_of_windows_and_a_byte_order_mark_are_no_fault() -> None:
    save(b"\xef\xbb\xbf" + solution(LAB.number).replace("\n", "\r\n").encode())
    found = lab("check", "block-manager")
    assert found.exit_code == 0, found.output


@pytest.mark.slow
@pytest.mark.parametrize("body", ["while True: pass", "keep = [b'x' * (1 << 28) for _ in range(64)]"])
def test_a_hang_and_a_memory_hog_end_at_a_limit(body: str) -> None:
    save(f"class BlockManager:\n    def __init__(self, blocks, size):\n        {body}\n")
    found = lab("check", "block-manager")
    assert found.exit_code == 1 and "0 of 11" in found.output
    assert "your code" in found.output or "MemoryError" in found.output
    assert "Traceback" not in found.output


def test_a_lab_is_found_by_its_name_only() -> None:
    assert find_lab("Block_Manager") is LAB
    with pytest.raises(UnknownLesson, match="did you mean block-manager"):
        find_lab("blok-manager")
    assert lab("check", "07.1").exit_code != 0


def test_an_interview_ends_with_marks_and_asks_about_cost() -> None:
    save(solution(LAB.number))
    probes = "".join(f"{probe.answer}\n" for probe in LAB.probes)
    held = lab("interview", "block-manager", typed=f"\nd\n{probes}2\n9\n1\n0\n")
    assert held.exit_code == 0, held.output
    assert held.output.count("11 of 11 checks pass") == 2 and "Hints are" in held.output
    [kept] = progress.events(LAB.number, "interview")
    assert kept.answer == {"correctness": 1.0, "cost": 1.0, "discussion": 0.5}
    assert progress.passed() == {"block-manager"}


@pytest.mark.parametrize(("typed", "said"), [("q\n", "left without marks"), ("", "no marks were kept")])
def test_an_interview_that_is_left_keeps_the_file_and_no_marks(typed: str, said: str) -> None:
    path = save("mine = 1\n")
    left = lab("interview", "block-manager", typed=typed)
    assert left.exit_code == 2 and said in left.output and path.read_text() == "mine = 1\n"
    assert progress.events(LAB.number, "interview") == []


def test_an_interview_whose_time_is_up_checks_once_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save("mine = 1\n")
    replies = iter(["", *"1" * 9])
    monkeypatch.setattr("builtins.input", lambda prompt: next(replies))
    hold(LAB, minutes=1e-6)
    assert "does not define BlockManager" in capsys.readouterr().out
    [kept] = progress.events(LAB.number, "interview")
    assert kept.answer["correctness"] == 0.0


def test_a_race_needs_a_file_that_passes() -> None:
    found = lab("race", "block-manager")
    assert found.exit_code == 1 and "does not pass" in found.output


@pytest.mark.slow
@pytest.mark.parametrize("each", [each for each in labs() if each.has_race], ids=lambda each: each.number)
def test_a_race_of_the_solution_against_itself_is_even(each: Lab) -> None:
    path = workspace.open_lab(each).path
    path.write_text(solution(each.number))
    found = json.loads(lab("race", each.number, "--json").stdout)
    assert len({tuple(row.values())[0] for row in found["rows"]}) == 4
    if each.track == "policies":  # virtual time: exact
        assert found["ratio"] == 1.0
        assert found["differs"] == ""
    else:
        assert found["ratio"] > 0  # measured time
    best = json.loads(lab("race", each.number, "--best", "--json").stdout)
    assert [race["ratio"] for race in best["races"]] == [found["ratio"]]
    assert each.number not in progress.passed(), "a race is no check"
