"""`prep lab`: every lab is complete, its checks reject its mutants, and any file ends in a sentence."""

from __future__ import annotations

import ast
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.lab_interview import hold
from app.cli.main import app
from app.trace_tools.decision_source import deciding_line
from engine.sim.cost import CostModel
from engine.sim.memory import make_deployment
from engine.trace.divergence import decision_at
from engine.trace.reader import TraceReader
from lessons.course import progress, workspace
from lessons.course.checking import checks, fewest, run_checks
from lessons.course.lesson_files import HUNTS, TRACKS, Lab, UnknownLesson, find_lab, labs, solution, stub
from lessons.course.mutants import mutants
from lessons.course.report_text import details
from lessons.labs.identity import same_tokens
from lessons.labs.racing import racer
from lessons.labs.recording import first_step
from lessons.labs.scheduler_fcfs.checks import Limits, asks_of, service
from lessons.labs.serving import decisions
from lessons.labs.submission import submit
from quizzes.autopsies.programs import calls, read, requirement
from quizzes.autopsies.programs import checks as checks_of
from quizzes.question_bank import load_bank
from quizzes.topics import TOPICS
from tests.lessons.test_lesson_files import shapes
from tests.quizzes.repairs import repairs
from tests.unfilled import left_to_fill

WRITTEN = [lab for lab in labs() if lab.track != HUNTS]
HUNTS_ONLY = [lab for lab in labs() if lab.track == HUNTS]
EVERY = pytest.mark.parametrize("each", WRITTEN, ids=lambda each: each.number)
LAB = find_lab("block-manager")
ALL_PASS, NONE_PASS = (f"{good} of {len(checks(LAB.number))}" for good in (len(checks(LAB.number)), 0))
ONE_OF_EACH = [
    next(each for each in WRITTEN if (each.track, each.language) == kind)
    for kind in sorted({(each.track, each.language) for each in WRITTEN} - {("kernels", "triton")})
]
"""Labs whose solution the default tier checks: one for each track and language. The slow tier checks all."""


def lab(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["lab", *words], input=typed)


def save(text: str | bytes) -> Path:
    path = workspace.open_lab(LAB).path
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def defined(each: Lab) -> list[str]:
    """Return the objects that both the stub and the solution define."""
    names = set(each.exercise.objects)
    for text in (each.stub, solution(each.number)):
        if each.file_name.endswith(".py"):
            names &= shapes(text).keys()
        else:
            names &= set(re.findall(r'^extern "C" [^{]*?(\w+)\([^{]*\{$', text, re.MULTILINE))
    return [name for name in each.exercise.objects if name in names]


def missing(each: Lab) -> list[str]:
    """Return what the files of a lab lack, with the file in which it belongs."""
    bank, found, exercise = load_bank(), mutants(each), each.exercise
    explains_race = not (each.has_race and each.track == "policies") or (
        each.follow_ups[0][0] == "Explain the race."
    )
    places = {other.folder for other in WRITTEN if (other.track, other.order) == (each.track, each.order)}
    parts = {
        f"meta.yaml: order {each.order} is that of another lab of the track {each.track}": len(places) == 1,
        f"meta.yaml: unknown in unlocks: {[name for name in each.unlocks if name not in bank]}": all(
            name in bank for name in each.unlocks
        ),
        "meta.yaml: unlocks names no question of the bank": each.unlocks,
        "meta.yaml: topics names no topic of the bank": each.topics and set(each.topics) <= set(TOPICS),
        f"meta.yaml: {len(exercise.hints)} hints of 3": len(exercise.hints) == 3,
        f"meta.yaml: {len(each.probes)} probes, at least 2": len(each.probes) >= 2,
        f"follow_ups.md: {len(each.follow_ups)} questions with a text below, at least 5": (
            len(each.follow_ups) >= 5 and all(question and more for question, more in each.follow_ups)
        ),
        "follow_ups.md: the first is not 'Explain the race.', the order of the baselines": explains_race,
        f"solution: it does not define all of {exercise.objects}": defined(each) == exercise.objects,
        f"mutants.py: {len(found)} wrong files, at least 5": len(found) >= 5,
        "mutants.py: two wrong files have the same words": len({one.why for one in found}) == len(found),
        f"{each.file_name}: not a name that every file system takes": re.fullmatch(
            r"[a-z0-9_]+\.(py|cpp|cu)", each.file_name
        ),
    }
    return [*(part for part, is_there in parts.items() if not is_there), *left_to_fill(each.folder)]


@EVERY
def test_its_files_are_complete(each: Lab) -> None:
    found = missing(each)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("each", HUNTS_ONLY, ids=lambda each: each.number)
def test_a_bug_hunt_has_a_page_a_question_and_a_solution(each: Lab) -> None:
    """`tests/quizzes/test_autopsies.py` runs the given program and the solution."""
    assert each.follow_ups and each.follow_up_page.startswith(f"# {each.title}")
    assert [name for name in each.unlocks if name not in load_bank()] == []
    assert stub(each, each.number) != solution(each.number)


@pytest.mark.parametrize("each", HUNTS_ONLY, ids=lambda each: each.number)
def test_a_bug_hunt_can_be_solved_from_its_file_alone(each: Lab) -> None:
    given, required = read(each.folder.name), checks_of(each.folder.name).values()
    text = stub(each, each.number)
    told = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    assert each.goal in told and "Keep the names" in told
    assert [requirement(check) for check in required if requirement(check) not in told] == []
    assert shapes(text) == shapes(given), "below the task stands the given program"
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("each", HUNTS_ONLY, ids=lambda each: each.number)
def test_the_given_program_of_a_bug_hunt_is_told_what_to_do(each: Lab) -> None:
    """The given programs of most hunts cannot be called as their tasks ask, so no check says what is wrong."""
    report = run_checks(each.number, stub(each, each.number))
    if each.number in (
        "mend-attention-kernel",
        "mend-block-manager",
    ):  # their checks can call the given program
        assert report.problem == "" and any(result.why for result in report.results)
        return
    assert report.is_stub and [result.why for result in report.results if result.why] == []
    start, called, end = re.split(r" call (\w+\(.+\))", report.problem)
    assert start == "not mended yet: this is still the given program, but the checks"
    assert (
        called in calls(solution(each.number)).values()
        and called not in calls(read(each.folder.name)).values()
    )
    assert end == "; change it as the text at its top asks, then check again"


@pytest.mark.parametrize("each", HUNTS_ONLY, ids=lambda each: each.number)
def test_a_repair_that_lacks_what_the_checks_call_is_told_its_arguments(each: Lab) -> None:
    wanted = calls(solution(each.number))
    said = run_checks(each.number, '"""A program."""\n').problem
    assert (
        said == f"it does not define {' or '.join(wanted.values())}; the text at its top says what to write"
    )
    repaired = repairs(each.folder.name)
    assert [name for name, text in repaired.items() if not wanted.keys() <= shapes(text).keys()] == []


@pytest.mark.parametrize(
    "each",
    [
        pytest.param(each, id=each.number, marks=[] if each in ONE_OF_EACH else pytest.mark.slow)
        for each in WRITTEN
    ],
)
def test_the_solution_passes_and_the_stub_is_not_yet_written(each: Lab) -> None:
    report = run_checks(each.number, solution(each.number))
    assert report.ok, (report.problem, [result for result in report.results if not result.ok])
    report = run_checks(each.number, stub(each, each.number))
    assert report.is_stub and "not written yet" in report.problem


@pytest.mark.parametrize(
    "each",
    [pytest.param(each, id=each.number, marks=[] if each is LAB else pytest.mark.slow) for each in WRITTEN],
)
def test_every_mutant_is_caught_by_the_check_it_names(each: Lab) -> None:
    for mutant in mutants(each):
        report = run_checks(mutant.exercise, mutant.source, only=mutant.check)
        assert report.results, f"{mutant.check}: there is no such check, or {report.problem}"
        assert not report.results[0].ok, f"{mutant.check} accepts: {mutant.why}"


def test_a_failure_is_cut_to_the_fewest_calls() -> None:
    wrong = next(mutant for mutant in mutants(LAB) if mutant.check == "random_families")
    [result] = run_checks(LAB.number, wrong.source, only=wrong.check).results
    assert 2 <= result.example.count("(") - 1 <= 4, result.example
    assert fewest(list(range(40)), lambda some: 7 in some and 31 in some) == [7, 31]


def test_a_learner_makes_a_file_solves_it_and_is_led_on() -> None:
    listed = lab()
    assert listed.exit_code == 0 and all(f"Track {track}" in listed.output for track in TRACKS)
    made = lab("new")
    assert str(workspace.lab_path(LAB)) in made.output.replace("\n", "")
    path = workspace.lab_path(LAB)
    assert path.read_text() == stub(LAB, LAB.number)
    assert "not written yet" in lab("watch", "block-manager", "--seconds", "0.1").output
    save(solution(LAB.number))
    assert lab("new", "block-manager").exit_code == 0 and path.read_text() == solution(LAB.number)
    checked = lab("check")
    assert checked.exit_code == 0 and ALL_PASS in checked.output
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
        ("", "the file is empty"),
        (" \n\t\n", "the file is empty"),
        ("x = 1\n", "does not define BlockManager"),
        (b"\x7fELF\x02\x01\x01\x00\x00\xc3\x28", "UTF-8"),
        ("#" * (2 << 20), "at most 1,048,576"),
        (solution(LAB.number).replace("num_blocks: int, block_size: int", "self_made: int"), NONE_PASS),
        (
            solution(LAB.number).replace("    ", "\t").replace("\t@property", "    @property", 1),
            "Error in line",
        ),
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
            NONE_PASS,
        ),
    ],
)
def test_a_faulty_file_gets_a_sentence(source: str | bytes, said: str) -> None:
    save(source)
    found = lab("check", "block-manager")
    assert found.exit_code not in (0, None) and said in found.output, found.output
    assert "Traceback" not in found.output and len(found.output) < 8_000
    assert progress.passed() == set()


def test_the_wait_for_a_verdict_is_measured_for_each_lab() -> None:
    done = CliRunner().invoke(app, ["bench", "labs", "--only", "block-manager,mend-scheduler", "--json"])
    measured = json.loads(done.stdout)
    assert [each["lab"] for each in measured] == ["block-manager", "mend-scheduler"]
    assert all(each["seconds"] > 0 and each["cpu_seconds"] > 0 for each in measured)


def test_watch_says_why_a_file_is_unreadable() -> None:
    save(b"\xff\xfe")
    assert "it is not text in UTF-8" in " ".join(
        lab("watch", "block-manager", "--seconds", "0.1").output.split()
    )


def test_line_ends_of_windows_and_a_byte_order_mark_are_no_fault() -> None:
    save(b"\xef\xbb\xbf" + solution(LAB.number).replace("\n", "\r\n").encode())
    found = lab("check", "block-manager")
    assert found.exit_code == 0, found.output


@pytest.mark.slow
@pytest.mark.parametrize("body", ["while True: pass", "keep = [b'x' * (1 << 28) for _ in range(64)]"])
def test_a_hang_and_a_memory_hog_end_at_a_limit(body: str) -> None:
    save(f"class BlockManager:\n    def __init__(self, blocks, size):\n        {body}\n")
    found = lab("check", "block-manager")
    assert found.exit_code == 1 and NONE_PASS in found.output
    assert "your code" in found.output or "MemoryError" in found.output
    assert "Traceback" not in found.output


def test_a_lab_is_found_by_its_name_only() -> None:
    assert find_lab("Block_Manager") is LAB
    with pytest.raises(UnknownLesson, match="did you mean 'block-manager'"):
        find_lab("blok-manager")
    assert lab("check", "07.1").exit_code != 0


def test_an_interview_ends_with_marks_and_asks_about_cost() -> None:
    save(solution(LAB.number))
    probes = "".join(f"{probe.answer}\n" for probe in LAB.probes)
    held = lab("interview", "block-manager", typed=f"\nd\n{probes}\n2\n\n9\n1\n\n0\n")
    assert held.exit_code == 0, held.output
    assert held.output.count(ALL_PASS) == 2 and "Hints are" in held.output
    [kept] = progress.events(LAB.number, "interview")
    assert kept.answer == {"correctness": 1.0, "cost": 1.0, "discussion": 0.5}
    assert progress.passed() == {"block-manager"}


def test_an_interview_advises_no_hint() -> None:
    probes = "1\n" * len(LAB.probes)
    held = lab("interview", "block-manager", typed=f"\nd\n{probes}\n2\n\n2\n\n2\n")
    assert held.exit_code == 0, held.output
    assert "Hints are" in held.output and "lab hint" not in held.output
    assert "prep lab hint block-manager" in lab("check", "block-manager").output


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
@pytest.mark.parametrize("each", [lab for lab in labs() if lab.has_race], ids=lambda each: each.number)
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


def test_tabs_are_no_fault() -> None:
    save(
        re.sub(
            r"^( {4})+", lambda match: "\t" * (len(match[0]) // 4), solution(LAB.number), flags=re.MULTILINE
        )
    )
    assert lab("check", "block-manager").exit_code == 0


def test_a_file_of_an_older_contract_is_kept_and_the_change_is_shown() -> None:
    path = save(solution(LAB.number))
    assert "contract" not in lab("check", "block-manager").output
    old = path.parent / ".contracts" / path.name
    old.write_text(stub(LAB, LAB.number).replace("def table(", "def table_of("))
    checked = lab("check", "block-manager")
    assert checked.exit_code == 0 and "the contract of block-manager has changed" in checked.output
    shown = lab("new", "block-manager").output
    assert "-    def table_of(" in shown and "+    def table(" in shown
    assert path.read_text() == solution(LAB.number)
    assert "contract" not in lab("check", "block-manager").output, "seen once, it is accepted"


def test_a_read_only_workspace_ends_in_a_sentence_and_keeps_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    path = save("mine = 1\n")

    def full(path: Path, text: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(workspace, "write_atomically", full)
    for words in (("new", "prefix-cache"), ("watch", "prefix-cache"), ("reset", "block-manager")):
        said = lab(*words)
        assert said.exit_code == 2 and "Read-only file system" in said.output, said.output
        assert "PREP_LESSONS" in said.output and "Traceback" not in said.output
    assert path.read_text() == "mine = 1\n"


def test_a_folder_or_a_device_in_place_of_a_file_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "missing.py"):
        said = lab("check", "block-manager", "--file", str(path))
        assert said.exit_code == 2 and f"cannot read {path}" in said.output.replace("\n", "")


@pytest.mark.parametrize(
    "name", ["block-manger", "C:\\labs\\block_manager.py", "block_manager.py", "BLOCK MANAGER"]
)
def test_the_nearest_lab_is_suggested(name: str) -> None:
    for words in (("check", name), ("new", name), ("hint", name), ("race", name), ("interview", name)):
        said = lab(*words)
        assert said.exit_code == 2 and "did you mean 'block-manager'?" in " ".join(said.output.split())


def test_the_interview_of_the_next_lab_starts_without_a_name() -> None:
    held = lab("--interview", "45", typed="q\n")
    assert held.exit_code == 2 and "Block manager with copy-on-write, 45 minutes" in held.output
    refused = lab("--interview", "45", "check")
    assert refused.exit_code == 2 and "prep lab interview LAB --minutes 45" in refused.output


def test_a_bug_hunt_is_begun_and_solved_like_any_lab() -> None:
    hunt = find_lab("mend-batching-loop")
    assert "Mend a continuous batching loop" in lab("new", hunt.number).output
    path = workspace.lab_path(hunt)
    assert path.read_text() == stub(hunt, hunt.number)
    assert lab("check", hunt.number).exit_code == 1
    path.write_text("def f(:\n")
    assert "SyntaxError in line 1" in lab("check", hunt.number).output
    path.write_text(solution(hunt.number))
    assert lab("check", hunt.number).exit_code == 0 and progress.passed() == {hunt.number}
    shown = " ".join(lab("follow-ups", hunt.number).output.split())
    assert "Where does it enter" in shown and "**" not in shown and "# " not in shown
    assert "has no race" in lab("race", hunt.number).output


# -- traces


FCFS = find_lab("scheduler-fcfs")


def test_a_failure_behind_the_engine_is_a_trace_of_the_smallest_workload() -> None:
    wrong = next(mutant for mutant in mutants(LAB) if mutant.check == "the_scheduler_runs_on_it")
    [result] = run_checks(LAB.number, wrong.source, only=wrong.check).results
    yours, ours = TraceReader(Path(result.trace)), TraceReader(Path(result.right_trace))
    assert yours.num_steps and len(ours.requests) <= 3
    assert result.step in (first_step(yours, ours), yours.num_steps - 1)
    lines = details(result)
    assert f"look at it: prep app --trace {result.trace} --step {result.step}" in lines
    assert not ours.problems and len(lines) == 4
    assert deciding_line(yours, result.step).code, "the debugger shows the line of the scheduler"


def test_open_shows_the_failure_in_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Path, int]] = []
    monkeypatch.setattr("app.cli.app.app", lambda trace, step: opened.append((trace, step)))
    wrong = next(mutant for mutant in mutants(LAB) if mutant.check == "the_scheduler_runs_on_it")
    save(wrong.source)
    assert lab("check", "block-manager", "--open").exit_code == 1
    [(trace, step)] = opened
    assert trace.is_file() and step < TraceReader(trace).num_steps
    save(stub(LAB, LAB.number))
    assert "no failure has a trace" in lab("check", "block-manager", "--open").output


def recorded_run(path: Path) -> Path:
    asks = asks_of((9, 20), (9, 20), (6, 20, 2))
    decisions(*service(asks, Limits(16, 3, 12, 4)), path)
    return path


@pytest.mark.parametrize("name", ["scheduler-fcfs", "block-manager"])
def test_a_submitted_trace_is_served_again_with_the_learners_part(name: str, tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run.itrace")
    each = find_lab(name)
    workspace.open_lab(each).path.write_text(solution(name))
    said = lab("submit-trace", name, str(run))
    assert said.exit_code == 0 and "3 requests" in said.output and "the same decision" in said.output
    found = json.loads(lab("submit-trace", name, str(run), "--json").stdout)
    assert found["ok"] and found["num_steps"] > 20


def test_a_submitted_trace_finds_a_part_that_decides_otherwise(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run.itrace")
    wrong = next(mutant for mutant in mutants(LAB) if mutant.check == "the_scheduler_runs_on_it")
    found = submit(LAB, wrong.source, run)
    assert not found.ok and found.differs and found.step <= found.num_steps
    assert submit(LAB, solution(LAB.number), run).ok


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("scheduler-fcfs", "missing.itrace"), "it does not exist"),
        (("scheduler-fcfs", __file__), "is not a trace"),
        (("fair-share", __file__), "takes no trace"),
    ],
)
def test_a_bad_submission_ends_in_a_sentence(words: tuple[str, str], said: str) -> None:
    workspace.open_lab(FCFS).path.write_text(solution(FCFS.number))
    found = lab("submit-trace", *words)
    assert found.exit_code == 2 and said in found.output and "Traceback" not in found.output


# -- races


@pytest.mark.slow
def test_the_same_seed_draws_the_same_table_and_a_chart() -> None:
    fcfs = import_module("lessons.labs.ngram_drafter.race")
    once, again, other = (
        fcfs.race(solution("ngram-drafter"), solution("ngram-drafter"), seed) for seed in (3, 3, 4)
    )
    assert once == again and once.rows[:-6] == other.rows[:-6] and once.rows != other.rows
    assert [name for name, _ in once.charts()] == ["chat", "long documents", "agents", "drawn by seed 3"]
    assert all(value > 0 for _, figures in once.charts() for _, value, _ in figures)


@pytest.mark.slow
def test_a_race_shows_the_first_decision_that_differs_as_two_traces() -> None:
    ours = solution("fair-share")
    late = f"{ours}\n\nclass Late(FairShare):\n    def arrive(self, request_id, tenant, tokens):\n"
    late += "        return super().arrive(request_id, tenant, tokens) + tokens\n\n\nFairShare = Late\n"
    found = import_module("lessons.labs.fair_share.race").race(late, ours, 0)
    assert found.differs and found.traces is not None
    yours, right, step = found.traces
    one, other = TraceReader(yours), TraceReader(right)
    assert decision_at(one, step) != decision_at(other, step)
    assert all(decision_at(one, each) == decision_at(other, each) for each in range(step))
    assert not one.problems and not other.problems


HARDWARE = make_deployment(model="llama-3-8b", gpu="h100", max_num_seqs=12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "columns", "more"),
    [
        ("lora-batching", (1, 2, 3), (CostModel(HARDWARE),)),
        ("router-affinity", (1,), (1,)),
        ("slo-admission", (1, 2), ()),
        ("retry-budget", (1, 2), (0,)),
        ("chunked-prefill", (1,), ()),
        ("priority-aging", (1,), (HARDWARE,)),
    ],
)
def test_the_engine_behind_a_race_is_recorded_step_by_step(
    name: str, columns: tuple[int, ...], more: tuple[Any, ...], tmp_path: Path
) -> None:
    racing = import_module(f"lessons.{find_lab(name).name}.race")
    track = next(iter(racing.tracks(0)))
    with racer(solution(name)) as guest:
        racing._record(*(track[at] for at in columns), *more, guest, tmp_path / "run.itrace")
    run = TraceReader(tmp_path / "run.itrace")
    assert run.num_steps > 100 and run.is_complete and not run.problems


@pytest.mark.slow
def test_a_part_of_the_scheduler_reproduces_the_tokens_of_the_shipped_model() -> None:
    with racer(solution("prefix-cache")) as guest:
        said = same_tokens("prefix-cache", guest)
    assert said.startswith("320 tokens of 8 requests") and " 0 preemptions" not in said
