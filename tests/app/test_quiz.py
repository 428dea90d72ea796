"""prep quiz, driven by scripts as a person would drive it: what is shown, judged, kept, and survived."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.main import app
from quizzes.answering import challenge_reply
from quizzes.autopsies.programs import LIMITS
from quizzes.experiments.running import run_here
from quizzes.expressions import ExpressionError, resolve
from quizzes.free_text.scoring import key_points
from quizzes.instance import draw
from quizzes.question_bank import load_bank
from quizzes.state import Prediction, Session, State
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "batching.static_vs_continuous"
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def prep(*args: str, answers: str = "", **environment: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, list(args), input=answers, env={"COLUMNS": "80", **environment})


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "app.cli.main", *args]


def alone(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which knows nothing of earlier ones and has an encoding."""
    return subprocess.run(
        command(*args),
        input="",
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, **environment},
        timeout=120,
    )


def right_answers(seed: int) -> list[str]:
    """Return the engine's answers for that seed, in the order of the prompts."""
    instance = draw(load_bank().question(QUESTION), seed)
    assert instance.question.experiment is not None
    expected = instance.expected(run_here(instance.question.experiment.run, instance.run_args()))
    return [str(expected["static"]), str(expected["continuous"])]


def script(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "answers.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def as_json(*args: str) -> dict[str, Any]:
    done = prep(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_right_answers_pass_and_are_kept(home: Path, tmp_path: Path) -> None:
    path = script(tmp_path, *right_answers(7), "80", "")
    done = prep("quiz", "--question", QUESTION, "--seed", "7", "--script", path)
    assert done.stdout.count("PASS") == 2 and "MISS" not in done.stdout, done.stdout + done.stderr
    assert "2 of 2 points" in done.stdout
    with State.open() as state:
        (attempt,) = state.attempts()
        assert attempt.correct and attempt.confidence == 80 and attempt.rating == 3
        assert attempt.prediction_id == state.predictions()[0].id


def test_vary_asks_again_for_a_text_without_a_value_and_s_returns_to_the_menu(
    home: Path, tmp_path: Path
) -> None:
    path = script(tmp_path, *right_answers(7), "80", "v", "slots", "slots=3", "v 5", "s", "")
    done = prep("quiz", "--question", QUESTION, "--seed", "7", "--script", path)
    assert done.exit_code == 0 and done.stdout.count("needs name=value") == 2, done.stdout + done.stderr
    assert "2 of 2 points" in done.stdout and "error" not in done.stderr


def test_help_keeps_its_indent_and_the_trace_command_is_one_line(home: Path, tmp_path: Path) -> None:
    target = tmp_path / ("long_name_" * 8 + ".itrace")
    path = script(tmp_path, "?", *right_answers(7), "80", f"t {target}", "")
    shown = prep("quiz", "--question", QUESTION, "--seed", "7", "--script", path).stdout
    lines = shown.splitlines()
    first = next(number for number, line in enumerate(lines) if "h hint" in line)
    assert lines[first].startswith(" h hint") and lines[first + 1].startswith(" "), lines[first : first + 2]
    assert f" prep trace info {target}" in lines


def test_a_wrong_answer_is_recognised_explained_and_a_surprise(home: Path, tmp_path: Path) -> None:
    instance = draw(load_bank().question(QUESTION), 7)
    bound = -(-sum(instance.params["lens"]) // instance.params["slots"])
    path = script(tmp_path, right_answers(7)[0], str(bound), "95", "")
    done = prep("quiz", "--question", QUESTION, "--seed", "7", "--script", path)
    assert "PASS" in done.stdout and "MISS" in done.stdout
    assert "no slot would ever idle" in done.stdout and "surprise" in done.stdout
    with State.open() as state:
        assert state.attempts()[0].mistake_id == "no_idle"


def test_what_cannot_be_read_is_asked_again_and_costs_nothing(home: Path, tmp_path: Path) -> None:
    first, second = right_answers(7)
    path = script(tmp_path, "", "many", "12 GiB", f"{int(first):,}", second, "200", "sure", "50", "")
    result = as_json("quiz", "--question", QUESTION, "--seed", "7", "--script", path)
    assert result["summary"]["right"] == 1 and result["items"][0]["points"] == 2


@pytest.mark.parametrize("skip", ["s", "/s", "/skip", "/pass", ":s", ":S"])
def test_a_question_is_skipped_in_every_spelling(skip: str, home: Path, tmp_path: Path) -> None:
    done = prep(
        "quiz", "--question", QUESTION, "--seed", "7", "--script", script(tmp_path, "no idea", skip, "")
    )
    assert (
        "'no idea' is not a number; type a number in steps: 1536 or 1.5k; /s skips it"
        in done.output.replace("\n", " ")
    )
    assert "skipped" in done.output


def test_hints_cost_and_are_counted(home: Path, tmp_path: Path) -> None:
    path = script(tmp_path, "h", *right_answers(7), "")
    result = as_json("quiz", "--question", QUESTION, "--seed", "7", "--script", path)
    assert (result["items"][0]["hints"], result["items"][0]["points"]) == (1, 1.5)


def test_an_exam_gives_no_hints_and_verdicts_at_the_end(home: Path, tmp_path: Path) -> None:
    path = script(tmp_path, "h", "1", "2", "60")
    done = prep("quiz", "--question", QUESTION, "--seed", "7", "--exam", "--script", path)
    assert "What decides" not in done.stdout
    before, after = done.stdout.split("confidence that all", 1)
    assert "PASS" not in before and "wrong" in after and right_answers(7)[0] in after


def test_the_same_seed_asks_the_same_and_the_judged_answer_is_the_engines(home: Path, tmp_path: Path) -> None:
    path = script(tmp_path, *["s"] * 5)
    first = as_json("quiz", "--seed", "3", "-n", "5", "--script", path)
    again = as_json("quiz", "--seed", "3", "-n", "5", "--script", path)
    ids = [(item["question_id"], item["seed"]) for item in first["items"]]
    assert ids == [(item["question_id"], item["seed"]) for item in again["items"]]
    assert first["summary"]["skipped"] == len(ids)


def test_answers_from_a_pipe_work_like_a_script(home: Path) -> None:
    done = prep(
        "quiz", "--question", QUESTION, "--seed", "7", answers="\n".join([*right_answers(7), "70", ""]) + "\n"
    )
    assert "2 of 2 points" in done.stdout, done.stdout + done.stderr


def test_plain_terminals_get_words_and_80_columns(home: Path, tmp_path: Path) -> None:
    path = script(tmp_path, "1", "2", "60", "")
    done = prep("quiz", "--question", QUESTION, "--seed", "7", "--script", path, NO_COLOR="1", TERM="dumb")
    assert "\x1b[" not in done.stdout and "MISS" in done.stdout
    too_wide = [line for line in done.stdout.splitlines() if len(line) > 80 and ">" not in line]
    assert [line for line in too_wide if not line.startswith(("1/1", " Enter"))] == []


def test_ascii_terminals_get_ascii(home: Path, tmp_path: Path) -> None:
    path = script(tmp_path, "1", "2", "60", "")
    done = alone(
        "quiz", "--question", QUESTION, "--seed", "7", "--script", path, PYTHONIOENCODING="ascii:replace"
    )
    assert "x MISS" in done.stdout and "?" not in done.stdout.split("you")[1].split("engine")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--topic", "prefix-cash"), "did you mean 'prefix_cache'"),
        (("--role", "boss"), "known: inference, kernel, platform, sre"),
        (("--kind", "essay"), "known: predict"),
        (("--question", "batching.nothing"), "no question is called"),
        (("--script", "/nowhere/answers.txt"), "there is no folder /nowhere"),
    ],
)
def test_what_does_not_exist_is_told_with_what_does(home: Path, args: tuple[str, ...], words: str) -> None:
    done = prep("quiz", *args)
    assert done.exit_code == 2 and words in done.stderr, done.stderr


@pytest.mark.slow
def test_killed_in_the_middle_it_keeps_every_judged_item_and_goes_on(home: Path, tmp_path: Path) -> None:
    """kill -9 while the second item waits for its answer."""
    process = subprocess.Popen(
        command("quiz", "--question", QUESTION, "--question", QUESTION, "--seed", "7"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n".join([*right_answers(7), "70", "", "5"]) + "\n")
    process.stdin.flush()
    _read_until(process, "2/2")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with State.open() as state:
        assert [attempt.correct for attempt in state.attempts()] == [True]
        assert state.unfinished("quiz") is not None
    done = prep("quiz", answers="q\n")
    assert "continuing the quiz" in done.stderr and "2/2" in done.stdout


@pytest.mark.slow
def test_ctrl_c_leaves_with_what_was_done_and_no_process(home: Path) -> None:
    import psutil

    process = subprocess.Popen(
        command("quiz", "--question", QUESTION, "--seed", "7"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
    )
    _read_until(process, "1/1")
    children = _eventually_has_a_worker(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors
    psutil.wait_procs([psutil.Process(pid) for pid in children if psutil.pid_exists(pid)], timeout=20)
    assert not any(psutil.pid_exists(pid) for pid in children)
    with State.open() as state:
        (session,) = state.sessions("quiz")
        assert session.spec["question"] == [QUESTION] and state.unfinished("quiz") is None


def interrupted_quiz(state: State) -> Session:
    """A sitting of two items, of which the first has an answer that was committed and not graded."""
    other = "scheduling.chunks_beside_decodes"
    session = state.begin_session("quiz", {"items": [[QUESTION, 7], [other, 1]], "exam": False})
    replies = dict(zip(("static", "continuous"), right_answers(7), strict=True))
    state.add(Prediction(session.id, QUESTION, load_bank().question(QUESTION).revision, 7, replies, 70))
    return session


def test_an_answer_that_was_committed_before_a_kill_is_graded_and_not_asked_again(home: Path) -> None:
    with State.open() as state:
        interrupted_quiz(state)
    done = prep("quiz", answers="\nq\n")
    assert "your answer was saved before the interruption" in done.stdout and "2 right" not in done.stdout
    assert done.stdout.count("PASS") == 2, done.stdout + done.stderr
    with State.open() as state:
        (attempt,) = state.attempts()
        (prediction,) = state.predictions()
        assert attempt.correct and attempt.prediction_id == prediction.id and attempt.confidence == 70


def test_a_quiz_that_another_terminal_continues_is_not_continued(home: Path) -> None:
    holder = "from quizzes.state import State\nwith State.open() as state:\n"
    holder += "    print(state.claim(state.unfinished('quiz').id), flush=True)\n    input()\n"
    with State.open() as state:
        session = interrupted_quiz(state)
        assert state.claim(session.id)
    environment = {**os.environ, **ENVIRONMENT}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", holder], env=environment, **pipes) as other:
        assert other.stdout is not None and other.stdout.readline() == "True\n", "claims end with their state"
        done = prep("quiz", answers="q\n")
        assert "is open in another terminal" in done.stderr and "continuing the quiz" not in done.stderr
        other.communicate("\n")
    with State.open() as state:
        assert not state.attempts() and state.claim(session.id)


@pytest.mark.slow
def test_two_terminals_at_once_both_keep_their_answers(home: Path, tmp_path: Path) -> None:
    path = script(tmp_path, *right_answers(7), "70", "")
    both = [
        subprocess.Popen(
            command("quiz", "--question", QUESTION, "--seed", "7", "--script", path),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
        )
        for _ in range(2)
    ]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    with State.open() as state:
        assert len(state.attempts()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("args", [("quiz", "--question", QUESTION), ("start",), ("review",), ("today",)])
def test_a_closed_stdin_is_an_empty_one(home: Path, args: tuple[str, ...]) -> None:
    done = subprocess.run(
        command(*args),
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        preexec_fn=lambda: os.close(0),
        timeout=120,
    )
    assert done.returncode == (130 if args == ("start",) else 0) and "rror" not in done.stderr, done.stderr


def test_a_closed_stdout_loses_the_output_only(home: Path) -> None:
    done = subprocess.run(
        command("progress"),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        preexec_fn=lambda: os.close(1),
        timeout=120,
    )
    assert done.returncode == 0 and "rror" not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "args", [("quiz", "--question", QUESTION), ("bank", "list"), ("claims", "show", "S0-13")]
)
def test_an_encoding_without_our_signs_gets_plain_ones(home: Path, args: tuple[str, ...]) -> None:
    done = alone(*args, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.isascii(), done.stderr
    assert " - " in done.stdout if args[0] != "claims" else '"' in done.stdout


def test_s_at_the_confidence_prompt_leaves_only_the_confidence_out(home: Path, tmp_path: Path) -> None:
    path = script(tmp_path, *right_answers(7), "s", "")
    result = as_json("quiz", "--question", QUESTION, "--seed", "7", "--script", path)
    assert result["summary"]["right"] == 1 and result["items"][0]["confidence"] is None


def test_an_id_is_never_broken_at_80_columns(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from app.cli import terminal

    longest = max(load_bank(), key=lambda entry: len(entry.id + entry.topic + entry.stage + entry.kind))
    done = prep("quiz", "--question", longest.id)
    (line,) = [line for line in done.stdout.splitlines() if longest.id in line]
    assert len(line) <= 80
    console = Console(width=30, force_terminal=True, color_system=None)
    with console.capture() as capture:
        terminal.say("a title that fills some space  memory.block_size", console)
    assert capture.get().splitlines()[-1].strip().endswith("memory.block_size")


def test_progress_in_a_pipe_says_how_much_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    from app.cli import terminal

    with terminal.progress(4, "questions", every=0) as advance:
        for name in "abcd":
            advance(name)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("1 of 4 questions, about 0 s left") and len(lines) == 3


def test_a_damaged_state_file_is_named_and_the_quiz_goes_on(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "state.sqlite3").write_bytes(b"not a database, but long enough to look at" * 100)
    path = script(tmp_path, *right_answers(7), "70", "")
    done = prep("quiz", "--question", QUESTION, "--seed", "7", "--script", path)
    assert "state.sqlite3" in done.stderr and "not saved" in done.stderr
    assert "2 of 2 points" in done.stdout


@pytest.mark.slow
def test_a_damaged_compiled_bank_is_named_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_CACHE", str(tmp_path))
    alone("bank", "list")
    [path] = (tmp_path / "documents").glob("bank-*.json")
    path.write_text(path.read_text()[:100])
    done = alone("bank", "list")
    assert QUESTION in done.stdout and "is damaged" in done.stderr
    assert "is damaged" not in alone("bank", "list").stderr


def _read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"never said {words!r}")


def _eventually_has_a_worker(pid: int) -> list[int]:
    import psutil

    return wait_until(lambda: [child.pid for child in psutil.Process(pid).children()])


@pytest.mark.slow
def test_a_program_is_mended_with_checks_in_between(home: Path, tmp_path: Path) -> None:
    from quizzes.autopsies.programs import FOLDER, mutants

    half = tmp_path / "half.py"
    wrong = next(m for m in mutants("block_manager") if m.check == "check_freeing_twice_is_refused")
    half.write_text(wrong.source)
    path = script(tmp_path, "?", "", str(half), str(FOLDER / "block_manager" / "solution.py"))
    done = prep("quiz", "--question", "code_review.mend_block_manager", "--script", path)
    assert "c prints the given program" in " ".join(done.stdout.split())
    assert "10/10 checks" in done.stdout and "1 of 1 points" in done.stdout, done.stdout + done.stderr
    assert "the second free of the same blocks was accepted" in done.stdout
    assert (home / "lessons" / "labs" / "mend_block_manager.py").exists()


@pytest.mark.slow
def test_a_program_that_hangs_is_stopped_and_the_learner_goes_on(home: Path, tmp_path: Path) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text("while True:\n    pass\n")
    path = script(tmp_path, str(hanging), "/nowhere.py", "g")
    done = prep("quiz", "--question", "code_review.mend_block_manager", "--script", path)
    assert f"stopped after {LIMITS.load_seconds:g} s while loading the file" in " ".join(done.stdout.split())
    assert "cannot read /nowhere.py" in done.stdout
    assert "1 partly" in done.stdout or "1 wrong" in done.stdout


def test_prose_is_marked_by_its_author_and_probed_by_the_engine(home: Path, tmp_path: Path) -> None:
    """Every free-text question with a probe in the bank runs this flow; here the first of them."""
    bank = load_bank()
    question = next(
        q
        for q in (bank.question(e.id) for e in bank if e.kind == "free")
        if any(p.probes for p in q.keypoints)
    )
    probes = {point.probes[0] for point in question.keypoints if point.must and point.probes}
    marks = ["h" for _ in question.keypoints]
    said = ". ".join(point.say for point in key_points(draw(question, 1)))
    path = script(tmp_path, said, ".", "", *["s" for _ in probes], "z", *marks)
    done = prep("quiz", "--question", question.id, "--seed", "1", "--script", path)
    before_marks = done.stdout[: done.stdout.index("Did you say it?")]
    asked = before_marks[before_marks.index(f"Probe 1 of {len(probes)}") :]
    assert question.keypoints[0].say[:40] not in asked, "a key point would give its probe away"
    result = as_json("quiz", "--question", question.id, "--seed", "1", "--script", path)
    item = result["items"][0]
    assert item["status"] in ("partly", "wrong") and 0 < item["points"] <= 1
    with State.open() as state:
        attempt = next(a for a in state.attempts() if a.question_id == question.id)
        assert {mark.by for mark in attempt.marks} == {"self", "probe"} and attempt.grader == "probe"
        assert not attempt.correct, "skipped probes are not passes"


def test_odd_replies_to_any_challenge_are_told_what_to_type() -> None:
    told = 0
    bank = load_bank()
    for question in (bank.question(entry.id) for entry in bank):
        instance = draw(question, 7)
        for follow_up in (followup for followup in question.followups if followup.experiment is not None):
            for text in ("4", "many", "[4, 9", "a, b", "{}", "4, x, 3", "none", "-1e99"):
                try:
                    reply = challenge_reply(instance, follow_up, text)
                    resolve(follow_up.experiment.args, {**instance.params, "reply": reply})
                except ExpressionError:
                    told += 1
                except ValueError as error:
                    assert "type" in str(error)
                    told += 1
    assert told > 20


@pytest.mark.slow
def test_a_challenge_refuses_a_reply_in_words_and_runs_a_list(home: Path, tmp_path: Path) -> None:
    right = draw(load_bank().question("batching.eight_letters"), 7)
    lengths = [right.params["a"], 1, 1, 1]
    replies = ["1", "60", "f", "four", "f", "4", "f", str(lengths), "q"]
    shown = prep("quiz", "--question", right.id, "--seed", "7", "--script", script(tmp_path, *replies)).stdout
    assert (
        "type numbers with commas" in shown and "not met" in shown and " met" in shown.rsplit("not met", 1)[1]
    )
    assert "cannot evaluate" not in shown


@pytest.mark.slow
def test_answer_lists_the_numbered_questions_with_the_items_that_cover_them(home: Path) -> None:
    rows = json.loads(prep("answer", "--list", "--json").stdout)
    assert [row["id"] for row in rows][:150] == [f"Q{number:03d}" for number in range(1, 151)]
    assert all(row["covered_by"] for row in rows) and [row["id"] for row in rows][150] == "X1"
    (row,) = [row for row in rows if row["id"] == "Q052"]
    assert row["question"] == "What is chunked prefill? (short form)"
    assert row["covered_by"][0] == "scheduling.explain_chunked_prefill"
    shown = prep("answer", "--list").stdout
    assert shown == prep("answer").stdout and "Q150 Mend it: a CUDA loop" in shown
    assert "Chunked prefill, what it protects" in prep("answer", "x5").stdout
    text = " ".join(prep("answer", "Q128").stdout.split())
    ask = load_bank().question(load_bank().covering("Q128")[0])
    prompt = " ".join(draw(ask, 0).prompt.replace("`", "").replace("*", "").split())
    assert text.index(f"Answered by {ask.id}") < text.index(prompt[:60]) < text.index("in 30 seconds")
    assert prep("answer", "q21").stdout == prep("answer", "Q021").stdout != ""
    assert prep("answer", "x005").stdout == prep("answer", "X5").stdout != ""
    unknown = prep("answer", "Q999")
    assert unknown.exit_code == 2 and "prep answer --list" in unknown.stderr


def test_bank_lint_names_files_that_are_not_formatted(home: Path) -> None:
    """`--fix` on a formatted file changes nothing; the tests of the formatter cover the rest."""
    path = ROOT / "quizzes/bank/memory/os_paging.yaml"
    before = path.read_text()
    done = prep("bank", "lint", "--fix", "memory.os_paging")
    assert done.exit_code == 0 and "formatted 0 of 1 files" in done.stdout
    assert path.read_text() == before
