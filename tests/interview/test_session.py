"""The log: resuming is replaying, at every prompt, also after a kill in the middle of a line."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.mock.choosing import open_ones
from interview.mock.candidates import Candidate
from interview.mock.choose import choose
from interview.mock.session import Session, SessionError, read, sessions
from quizzes.experiments.runner import Runner
from quizzes.question_bank import load_bank
from tests.interview.helpers import sample, start


@pytest.mark.slow
def test_every_prompt_is_the_same_after_opening_again(runner: Runner) -> None:
    """Close and open the session before every reply: same turns, same evidence as in one go."""
    with start("whole") as whole:
        candidate, turns = Candidate("excellent", whole, runner), []
        while whole.turn is not None:
            turns.append((whole.turn.id, whole.turn.say))
            whole.reply(*candidate.reply(whole.turn))
    start("parts").close()
    seen, clarified = [], set[str]()
    while True:
        with Session.open("parts", sample()) as session:
            if session.turn is None:
                break
            seen.append((session.turn.id, session.turn.say))
            candidate = Candidate("excellent", session, runner)
            candidate._clarified = clarified
            session.reply(*candidate.reply(session.turn))
    assert seen == turns
    assert session.talk.evidence == whole.talk.evidence
    assert session.elapsed == pytest.approx(whole.elapsed)
    assert read("parts").elapsed == pytest.approx(session.elapsed), "as lists show it, without marks and runs"


def test_a_line_that_was_cut_off_is_asked_again(home: Path) -> None:
    with start() as session:
        session.reply({})
        session.reply({"text": "word " * 40}, 30.0)
        at = session.turn
    path = home / "mock" / "s1.jsonl"
    path.write_bytes(path.read_bytes() + b'{"turn": "inference.slots/p_refill#ask", "rep')
    with Session.open("s1", sample()) as again:
        assert again.turn is not None and at is not None and again.turn.id == at.id
        again.reply({"pass": True})
    assert json.loads(path.read_text().splitlines()[-1])["reply"] == {"pass": True}


KILLED = """
import os, signal
from tests.interview.helpers import start
session = start("killed")
session.reply({})
session.reply({"text": "some words"}, 5.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_lock_and_loses_no_reply() -> None:
    child = subprocess.run([sys.executable, "-c", KILLED], check=False, capture_output=True)
    assert child.returncode == -9, child.stderr.decode()
    with Session.open("killed", sample()) as session:
        assert session.turn is not None and session.turn.id.endswith("p_refill#ask")


def test_two_at_once_are_refused() -> None:
    with start(), pytest.raises(SessionError, match="open in another terminal"):
        Session.open("s1", sample())
    Session.open("s1", sample()).close()


def test_a_session_can_be_read_while_it_is_held() -> None:
    with start() as session:
        session.reply({})
        assert Session.replay("s1", sample()).turn == session.turn


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a session"),
        ("nonsense\n", "is not a session"),
        ('{"format": 9, "spec": {}}\n', "has format 9"),
        ('{"format": 1, "spec": {"scenarios": [], "colour": 1}}\n', "damaged"),
    ],
)
def test_a_file_that_is_no_session_is_named(home: Path, text: str, says: str) -> None:
    (home / "mock").mkdir()
    (home / "mock" / "x.jsonl").write_text(text)
    with pytest.raises(SessionError, match=says):
        read("x")
    assert sessions() == []


def test_a_scenario_that_changed_since_ends_the_session(home: Path) -> None:
    with pytest.raises(SessionError, match="has changed since it began"):
        start("old", digests={"inference.slots": "0" * 16})
    with pytest.raises(SessionError, match="does not exist any more"):
        start("gone", scenarios=("inference.gone",))


def earlier(home: Path, *, skips_said: bool) -> Path:
    """Write the log of a version that asked for a number which the answer gives. skips_said: as if it left it out."""
    with start(skips_said=False, started="2026-11-01T10:00:00+00:00") as session:
        total = sum(session.scenarios[0].params["lens"])
        session.reply({})
        session.reply({"text": f"A slot refills at once. With one slot it would take {total} steps."}, 60.0)
        while session.turn is not None and not session.turn.id.endswith("#mark.refill"):
            session.reply({"pass": True}, 10.0)
    path = home / "mock" / "s1.jsonl"
    head, *lines = path.read_text().splitlines()
    fields = json.loads(head)
    del fields["spec"]["skips_said"]
    fields["spec"] |= {"skips_said": True} if skips_said else {}
    path.write_text("\n".join([json.dumps(fields), *lines]) + "\n")
    return path


def test_the_log_of_an_earlier_version_is_replayed_with_all_its_turns(home: Path) -> None:
    path = earlier(home, skips_said=False)
    assert "p_tail#ask" in path.read_text()
    with Session.open("s1", sample()) as session:
        assert session.turn is not None and session.turn.id.endswith("#mark.refill")
    assert [saved.spec.id for saved in open_ones()] == ["s1"]


def test_a_session_that_cannot_be_replayed_is_kept_and_not_offered_again(home: Path) -> None:
    path = earlier(home, skips_said=True)
    before = path.read_bytes()
    with pytest.raises(
        SessionError, match=r"does not fit this version of prep .*; its log is kept: .*s1\.jsonl"
    ):
        Session.open("s1", sample())
    assert open_ones() == [] and path.read_bytes().startswith(before)
    listed = CliRunner().invoke(app, ["mock", "list"]).output
    assert "does not fit this version" in " ".join(listed.split())
    with pytest.raises(SessionError, match="does not fit"):
        Session.open("s1", sample())  # by name it may be tried again


def test_a_session_that_fits_again_is_offered_again(home: Path) -> None:
    path = earlier(home, skips_said=True)
    with pytest.raises(SessionError, match="does not fit"):
        Session.open("s1", sample())
    path.write_text(path.read_text().replace('"skips_said": true', '"skips_said": false'))
    Session.open("s1", sample()).close()
    assert [saved.spec.id for saved in open_ones()] == ["s1"]
    path.write_text(path.read_text().replace('"skips_said": false', '"skips_said": true'))
    with pytest.raises(SessionError, match="does not fit"):
        Session.open("s1", sample())
    assert open_ones() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reply", {"replies": {"choice": "9"}, "confidence": 60}),
        ("reply", {"replies": {"reserved": "many", "paged": "9", "factor": "2"}, "confidence": 60}),
        ("reply", {"confidence": 60}),
        ("reply", []),
        ("seconds", None),
        ("seconds", "long"),
    ],
)
def test_a_reply_that_its_question_does_not_take_any_more_is_no_traceback_and_not_offered_again(
    home: Path, field: str, value: object
) -> None:
    """The session has no hash of its question for the beginning, as those of earlier versions."""
    with start(warm="batching.two_goals") as session:
        session.reply({})
        session.reply({"replies": {"reserved": "3", "paged": "9", "factor": "2"}, "confidence": 60}, 9.0)
    path = home / "mock" / "s1.jsonl"
    *before, line = path.read_text().splitlines()
    path.write_text("\n".join([*before, json.dumps(json.loads(line) | {field: value})]) + "\n")
    with pytest.raises(SessionError, match=r"does not fit this version of prep \(reply 2\); its log is kept"):
        Session.open("s1", sample())
    assert open_ones() == []


def test_a_question_that_changed_since_ends_the_session() -> None:
    with pytest.raises(SessionError, match="its question batching.straggler has changed since it began"):
        start("old", warm="batching.straggler", digests={"warm/batching.straggler": "0" * 16})
    with pytest.raises(SessionError, match="its question batching.gone does not exist any more"):
        start("gone", warm="batching.gone")


def test_a_new_session_keeps_hashes_of_its_scenario_and_its_question() -> None:
    scenarios, bank = sample(), load_bank()
    spec = choose(scenarios, bank, [], role="inference", level="mid", minutes=45, seed=1)
    assert spec.warm and spec.digests == {
        **{name: scenarios.digest(name) for name in spec.scenarios},
        f"warm/{spec.warm}": bank.digest(spec.warm),
    }
    Session.start(spec, scenarios).close()


def test_a_folder_that_cannot_be_written_is_named(home: Path) -> None:
    (home / "mock").write_text("a file in the way")
    with pytest.raises(SessionError, match="cannot write"):
        start()


def test_odd_characters_survive(home: Path) -> None:
    text = "🙂 \ud800 \x00 \x1b[31m наконец " * 5
    with start() as session:
        session.reply({})
        session.reply({"text": text})
    with Session.open("s1", sample()) as again:
        said = next(asked for asked in again.talk.asked if asked.stage == "core")
        assert said.replies["text"] == text.strip()


def test_a_reply_that_cannot_be_written_leaves_the_session_as_it_was() -> None:
    """A limit on the size of files fails in the middle of a line, as a full disk does."""
    with start() as session:
        session.reply({}, 1.0)
        before, turn = session.path.read_bytes(), session.turn
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
        try:
            with pytest.raises(OSError):
                session.reply({"text": "four words, then more"}, 1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert session.path.read_bytes() == before and session.turn is turn
        session.reply({"text": "four words, then more"}, 1.0)
    assert [line["reply"].get("text") for line in read("s1").lines] == [None, "four words, then more"]
