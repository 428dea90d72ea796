"""prep mock at the terminal, driven by scripts and pipes as a person would drive it."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.cli.main import app
from app.cli.mock.choosing import Wanted, specify
from app.cli.mock.floor import Clock, Floor
from app.cli.mock.incident import read_hypothesis
from app.cli.mock.showing import said
from interview.mock import coding
from interview.mock.session import Session, read, sessions
from interview.mock.turns import Hypothesis
from quizzes.experiments.runner import Outcome, RunFailed, Runner
from tests.app.mock_typist import sit

SCENARIOS = Path(__file__).parent / "mock_scenarios"
START = ("start", "--seed", "3")
WARM = ("", "/pass")
PROSE = ("A freed slot is refilled at the next step.", ".")
MARKS = ("h", "p")
PROBE = ("1", "")
BOUND = ("61", "50..70", "70")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled bank and known results, shared by the tests of prep mock."""
    folder = tmp_path_factory.getbasetemp() / "mock-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "cache").symlink_to(cache)
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREP_SCENARIOS", str(SCENARIOS))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("PREP_DEBUG", raising=False)
    return tmp_path / "home"


def prep(*args: str, lines: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(app, ["mock", *args], input="".join(f"{line}\n" for line in lines))


def replies() -> list[dict[str, Any]]:
    """Return the replies of the last session, as its log has them."""
    return [line["reply"] for line in sessions()[0].lines if "result" not in line["reply"]]


def as_editor(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Make $EDITOR a program that writes this text."""
    editor = folder / "editor"
    editor.write_text(f"#!/bin/sh\nprintf '{text}' > \"$1\"\n")
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)


def test_a_whole_interview_fits_into_80_columns_and_ends_with_its_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Session.start(specify(Wanted(minutes=45, seed=3))) as session:
        facts = sit(session)
    shown = capsys.readouterr().out
    assert facts["over"] and facts["turn"] is None
    for words in (
        "MOCK · inference engineer, senior · 45 min",
        "00:00 / 45:00",
        "you said",
        "measured",
        "refute it",
    ):
        assert words in shown, words
    assert "PASS" not in shown and "The interview is over" in shown and "for senior:" in shown
    typed = ("> ", "| ")
    wide = [line for line in shown.splitlines() if len(line) > 80 and not any(t in line for t in typed)]
    assert not wide, wide
    again = prep("report")
    assert "for senior:" in again.output and "Communication" in again.output
    assert json.loads(prep("report", "--json").stdout)["finished"]
    page = tmp_path / "report.html"
    prep("report", "--html", str(page))
    assert page.read_text().startswith("<!doctype html>")
    assert "## Axes" in prep("report", "--markdown").stdout
    assert "communication" in prep("list").stdout and json.loads(prep("list", "--json").stdout)[0]["marks"]


def test_code_in_a_question_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    said("Review this.\n\n```python\nx = 1\n  # [b] **y**\n```\n\nWhich faults\ndo you see?")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines == ["Interviewer: Review this.", "x = 1", "# [b] **y**", "Which faults do you see?"]


@pytest.mark.slow
def test_coaching_tells_verdicts_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Session.start(specify(Wanted(minutes=20, seed=3, coach=True))) as session:
        sit(session, "wrong")
    shown = capsys.readouterr().out
    assert "verdicts at once" in shown and "Not quite." in shown and "MISS" in shown


def test_a_session_is_left_with_q_and_goes_on_at_the_same_prompt() -> None:
    left = prep(*START, lines=(*WARM, "/clarify how long are they?", PROSE[0], "q"))
    assert left.exit_code == 0 and "They want 12, 40" in left.output, left.output
    assert "prep mock resume" in left.output
    (saved,) = sessions()
    assert [line["turn"].split("#")[1] for line in saved.lines] == ["rules", "ask", "answer"]
    again = prep("resume", lines=(".", "q"))
    assert "you have written 9 words" in again.output and "how many slots are idle" in again.output
    assert "A freed slot" in again.output and "Why does a continuous batch" in " ".join(again.output.split())
    assert read(saved.spec.id).lines[-1]["reply"] == {"text": PROSE[0]}


def test_a_mistyped_number_is_typed_again_where_its_interval_disagrees_also_after_a_resume() -> None:
    left = prep(*START, lines=(*WARM, *PROSE, *PROBE, *MARKS, "999", "50..70"))
    assert "lies outside of your interval" in left.output and "n: type the number again" in left.output
    again = prep("resume", lines=("?", "n", "61", "50..70", "70", "q"))
    assert "you have typed: least steps: 999" in again.output
    assert "n instead of it asks for the number again" in " ".join(again.output.split())
    (saved,) = sessions()
    [bound] = [line["reply"] for line in read(saved.spec.id).lines if line["turn"].endswith("bound#ask")]
    assert bound == {"replies": {"least": "61", "least.interval": "50..70"}, "confidence": 70}


def test_plain_mock_offers_the_open_session_and_else_asks_what_to_begin() -> None:
    first = prep(lines=("inference", "boss", "staff", "20", "", "q"))
    assert (
        "unknown level 'boss'" in first.output and "MOCK · inference engineer, staff · 20 min" in first.output
    )
    second = prep(lines=("", "q"))
    assert "an interview is open" in second.output and "resume" in second.output
    assert "warm-up" in second.output and len(sessions()) == 1
    third = prep(lines=("n", "", "", "", "q"))
    assert "MOCK · inference engineer, senior · 45 min" in third.output and len(sessions()) == 2


@pytest.mark.parametrize(
    "said",
    [
        "def step():\n    return self.schedule()  # code in place of prose",
        "Ein freier Platz wird im nächsten Schritt vergeben.",
        "空いたスロットは次のステップで埋まる。 🚀🚀",
        "[bold]markup[/] {{ template }} $(touch /tmp/x)",
    ],
)
def test_prose_may_be_code_another_language_or_emoji(said: str) -> None:
    done = prep(*START, lines=(*WARM, *said.splitlines(), ".", "q"))
    assert done.exit_code == 0 and "idle slots" in done.output, done.output
    assert replies()[-1]["text"].split() == said.split()


def test_control_characters_are_dropped_and_other_bytes_replaced() -> None:
    typed = "\n/pass\na \x1b[31mred\x1b[0m\x07 word \u202ereversed\n.\nq\n".encode()
    done = CliRunner().invoke(app, ["mock", *START], input=typed)
    assert done.exit_code == 0 and "\x07" not in done.output
    assert replies()[-1] == {"text": "a red word reversed"}


@pytest.mark.parametrize("skip", ["/pass", "/s", ":s", ":pass"])
def test_a_number_that_is_not_known_names_the_way_to_pass_in_every_spelling(skip: str) -> None:
    done = prep(*START, lines=(*WARM, *PROSE, *PROBE, *"hp", "I don't know, I would measure", skip, "q"))
    assert "is not a number; type a number" in done.output and "/pass gives no answer" in done.output
    assert replies()[-1] == {"pass": True}


@pytest.mark.parametrize("typed", ["/h", "/hint", ":h", "/?"])
def test_help_works_in_prose_in_every_spelling_and_is_no_part_of_the_answer(typed: str) -> None:
    done = prep(*START, lines=(*WARM, "idle slots", typed, "refill", ".", "q"))
    assert "/clarify" in done.output
    assert replies()[-1]["text"].split() == ["idle", "slots", "refill"]


def test_the_prompt_for_the_figures_that_decide_names_none_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("1\n50\nwaiting_mean, running_mean\n")
    talk: Any = SimpleNamespace(floor=Floor(lines), draft=SimpleNamespace(data={}), keep=lambda: True)
    want = Hypothesis((("a", "One."), ("b", "Two.")), ("waiting_mean", "running_mean"))
    assert read_hypothesis(talk, want)["evidence"] == ["waiting_mean", "running_mean"]
    [prompt] = [line for line in capsys.readouterr().out.splitlines() if "figures that decide" in line]
    assert "_mean" not in prompt.partition(">")[0]


def test_a_mark_that_does_not_count_says_so_before_it_is_given() -> None:
    denied = "None of the following is true. A slot that becomes free is given to a waiting request in the next step."
    left = prep(*START, lines=(*WARM, denied, ".", *PROBE, "h", "q"))
    told = " ".join(left.output.split())
    assert "your answer denies this point, as it reads: h and p do not count" in told
    assert read(sessions()[0].spec.id).lines[-1]["reply"] == {"mark": "hit"}


def test_silence_and_20_000_characters_are_told_and_cost_nothing() -> None:
    done = prep(*START, lines=(*WARM, ".", "word " * 4100, ".", "q"))
    assert "you have not said anything yet" in done.output
    assert "20,000 is the limit" in " ".join(done.output.split()) and len(replies()) == 2


def test_passing_prose_brings_a_hint_and_is_then_silence() -> None:
    done = prep(*START, lines=(*WARM, "/pass", "/pass", "q"))
    assert "Think of the step" in done.output and [r["text"] for r in replies()[2:]] == ["", ""]


def test_every_prompt_refuses_what_it_cannot_read_and_asks_again() -> None:
    lines = (
        *("", "9", "1", "?", "zz", "1000", "50"),  # warm-up: an option, a confidence
        *(*PROSE, *PROBE, "z", "?", "h", "p"),  # marks
        *("many", "1", "", "x..y", *BOUND[:1], "9..2", *BOUND[1:]),
        *("0", "many", "3", "100", "", "", "1", ""),  # own slots, a prediction, a choice
        *("", "gpu", "gpu tpu", "nothing 3", "2 99", "?", "check", "4 5", "commit"),
        "q",
    )
    done = prep(*START, lines=lines)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    for words in (
        "and a number off by more than a factor of 2 counts twice and earns 1 less.",
        "Without a confidence, 50 % is assumed.",
        "type a whole number from 1 to 99",
        "h if you stated it",
        "'many' is not a number",
        "0 is out of range; use 1 to 8",
        "'tpu' is not possible; use one of l4, a100-80, h100",
        "99 is out of range; use 0.1 to 0.95",
        "type a field and its value",
    ):
        assert words in text, words
    assert replies()[-1]["commit"] and "curveball" in text


def test_commands_work_at_every_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_editor(tmp_path, monkeypatch, "one two three")
    lines = (
        *WARM,
        "/draw",
        "/time",
        "/pause",
        "",
        "/clairfy x",
        "/v1/completions is a path",
        "/editor",
        ".",
        "q",
    )
    done = prep(*START, lines=lines)
    assert "kept: 1 line" in done.output and "45:00" not in done.output.split("/time")[1].split("left")[0]
    assert "did you mean /clarify?" in done.output and "3 words" in done.output
    assert replies()[-1] == {"text": "one two three"}
    (saved,) = sessions()
    assert [note["note"] for note in saved.notes] == ["drawing", "pause"]
    assert saved.notes[0]["text"] == "one two three"


def test_a_question_back_is_answered_at_a_prompt_for_numbers_too() -> None:
    done = prep(*START, lines=(*WARM, *PROSE, "/clarify which model?", "/clarify the weather", "q"))
    assert "8 B parameters" in done.output and "State your assumption" in done.output
    assert [note["told"] for note in sessions()[0].notes] == ["A model with 8 B parameters.", ""]


def test_a_run_that_fails_or_is_interrupted_does_not_end_the_interview(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([KeyboardInterrupt(), RunFailed("batching was stopped")])

    def run(self: Runner, name: str, args: Any = None, **more: Any) -> Outcome:
        raise next(answers)

    monkeypatch.setattr(Runner, "run", run)
    done = prep(*START, lines=(*WARM, *PROSE, *PROBE, *MARKS, *BOUND, "3", "100", "", "", "1", "", "q"))
    text = " ".join(done.output.split())
    assert done.exit_code == 0 and "The run failed (the run was interrupted). It does not count" in text
    assert "The run failed (batching was stopped)" in text and "a fleet" in text


def test_ctrl_c_at_a_prompt_says_how_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Floor, prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Floor, "read", interrupted)
    done = prep(*START)
    assert done.exit_code == 130 and "prep mock resume" in done.output and len(sessions()) == 1


def test_a_session_that_is_open_elsewhere_is_refused() -> None:
    prep(*START, lines=("", "q"))
    with Session.open(sessions()[0].spec.id):
        refused = prep("resume")
    assert refused.exit_code == 2 and "open in another terminal or tab" in refused.output
    assert prep("resume", lines=("q",)).exit_code == 0


def test_a_session_or_report_of_a_newer_version_is_named(home: Path) -> None:
    prep(*START, lines=("", "q"))
    saved = sessions()[0]
    text = saved.path.read_text()
    saved.path.write_text(text.replace('{"format": 1', '{"format": 99', 1))
    assert "has format 99" in prep("list").output
    refused = prep("resume", saved.spec.id)
    assert refused.exit_code == 2 and "update prep" in refused.output
    assert "no interview is open" in prep("resume").output
    saved.path.write_text(text)
    saved.path.with_suffix(".report.json").write_text('{"format": 99}')
    refused = prep("report", saved.spec.id[-6:])
    assert refused.exit_code == 2 and "has format 99" in refused.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--role", "boss"), "known: inference, kernel"),
        (("--level", "junior"), "known: mid, senior, staff"),
        (("--minutes", "30"), "20, 45 or 60, not 30"),
        (("--scenario", "inference.slotz"), "did you mean 'inference.slots'?"),
        (("resume",), "no interview is open"),
        (("resume", "nothing"), "no session is called 'nothing'"),
        (("report",), "no interview is over yet"),
        (("--role", "sre", "list"), "options come after prep mock list"),
        (("peer",), "say whether you interview"),
    ],
)
def test_what_does_not_exist_is_told_with_what_does(args: tuple[str, ...], words: str) -> None:
    done = prep(*args)
    assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output


def test_json_is_all_that_is_printed() -> None:
    done = CliRunner().invoke(app, ["mock", "--seed", "3", "--json"], input="\n")
    facts = json.loads(done.stdout)
    assert facts["turn"].startswith("warm/") and not facts["over"]
    assert json.loads(prep("scenarios", "--json").stdout)[0]["id"] == "inference.slots"
    assert "Slots of a batch" in prep("scenarios", "--role", "inference").stdout


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_interview_is_not_kept_if_the_input_ends_before_the_first_reply(
    home: Path, more: tuple[str, ...]
) -> None:
    done = prep(*START, *more)
    assert done.exit_code == 2 and "standard input ended before the first reply" in done.stderr
    assert not list((home / "mock").iterdir())


@pytest.mark.parametrize("lines", [("",), ("q",)])
def test_an_interview_with_a_reply_or_left_by_its_candidate_is_kept(lines: tuple[str, ...]) -> None:
    assert prep(*START, lines=lines).exit_code == 0
    assert prep("resume").exit_code == 0 and len(sessions()) == 1


def test_pauses_and_changes_of_the_date_do_not_count() -> None:
    now = [100.0]
    clock = Clock(lambda: now[0])
    now[0] += 5
    clock.pause(lambda: now.__setitem__(0, now[0] + 3600))
    now[0] += 2
    assert clock.seconds == 7


def test_the_interviewer_warns_at_80_percent_and_stops_at_120(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("app.cli.mock.floor.Clock.seconds", property(lambda _: now[0]))
    spent = iter([0.0, 10.0, 200.0, 210.0, 300.0, 310.0, 320.0])
    read_line = Floor.read

    def slowly(self: Floor, prompt: str) -> str:
        now[0] = next(spent) if "|" in prompt else 0.0
        return read_line(self, prompt)

    monkeypatch.setattr(Floor, "read", slowly)
    done = prep(*START, lines=(*WARM, "a", "b", "c", "d", "e", ".", "q"))
    assert done.output.count("come to the end") == 1 and done.output.count("Let me stop you there") == 1
    assert "03:20 of 04:00" in done.output
    assert [note["note"] for note in sessions()[0].notes] == ["stopped"]


def test_code_is_written_in_a_file_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = yaml.safe_load((SCENARIOS / "inference" / "slots.yaml").read_text())
    for step in scenario["steps"]:
        if step["id"] == "fleet":
            del step["canvas"]
            step["code"] = {"exercise": "07.1"}
    scenario["kind"] = "coding"
    (tmp_path / "own" / "inference").mkdir(parents=True)
    (tmp_path / "own" / "inference" / "slots.yaml").write_text(yaml.safe_dump(scenario))
    monkeypatch.setenv("PREP_SCENARIOS", str(tmp_path / "own"))
    seen: list[str] = []

    def check(code: Any, source: str) -> coding.Checked:
        seen.append(source)
        shown = [(True, "Blocks are distinct.", []), (False, "No block leaks.", ["after 3 frees 2 are left"])]
        return coding.Checked(["distinct"], ["leaks"], checks=shown)

    monkeypatch.setattr(coding, "check", check)
    as_editor(tmp_path, monkeypatch, "mine = 1")
    before = (*WARM, *PROSE, *PROBE, *MARKS, *BOUND, "3", "100", "", "", "1", "")
    done = prep(*START, lines=(*before, "", "e", "", "/nowhere.py", "r", "c", "?", "done", "q"))
    text = " ".join(done.output.split())
    assert "No block leaks." in text and "after 3 frees 2 are left" in text and "1 of 2 checks pass" in text
    assert "cannot read /nowhere.py" in text and "your file is now" in text
    assert len(seen) == 3 and seen[1] == "mine = 1" and seen[2] == seen[0]
    reply = replies()[-1]
    assert reply["tries"] == 2 and reply["failed"] == ["leaks"] and reply["source"] == seen[0]


def test_an_unwritable_home_is_told_in_one_line(home: Path) -> None:
    (home / "mock").write_text("a file, not a folder")
    done = prep(*START)
    assert done.exit_code == 2 and "cannot write" in done.output and "Traceback" not in done.output


def test_an_answer_waits_while_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    write, full = Session._write, [True, True]

    def fails_twice(self: Session, entry: dict[str, Any]) -> None:
        if entry.get("reply", {}).get("text") and full:
            full.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, entry)

    monkeypatch.setattr(Session, "_write", fails_twice)
    done = prep(*START, lines=(*WARM, *PROSE, "", "", "q"))
    text = " ".join(done.output.split())
    assert text.count("your answer is not kept yet: No space left on device") == 2 and done.exit_code == 0
    assert replies()[-1] == {"text": PROSE[0]} and "idle slots" in text


@pytest.mark.slow
def test_the_prompt_survives_an_encoding_without_our_signs(capfd: pytest.CaptureFixture[str]) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "app.cli.main", "mock", *START]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(command, input=b"\n/pass\n\xff\xfe\n.\nq\n", capture_output=True, env=environment)
    assert done.returncode == 0 and done.stdout.isascii() and b"\x1b[" not in done.stdout, done.stderr
    assert "\ufffd" in replies()[-1]["text"]
