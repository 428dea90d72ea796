"""prep mock in a real terminal: kill -9 at every prompt, Ctrl-C, keys typed during a run."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interview.mock.candidates import Candidate
from interview.mock.session import Session, read, sessions
from quizzes.experiments.runner import Runner
from tests.app.mock_typist import typed
from tests.app.test_mock_cli import PROBE, PROSE, SCENARIOS, WARM, cache, home  # noqa: F401
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
PROMPT = re.compile(rb"(> |\d+ \| )$")


class Screen:
    """A command in a terminal of 80 columns."""

    def __init__(self, *args: str, **environment: str) -> None:
        command = [sys.executable, "-m", "app.cli.main", "mock", *args]
        plain = {"PYTHONPATH": str(ROOT), "TERM": "dumb", "INPUTRC": "/dev/null"}
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, command, {**os.environ, **plain, **environment})
        self.shown = b""

    def until(self, words: str | re.Pattern[bytes]) -> str:
        """Read until the text appears, or a pattern matches and nothing follows. Return what was read."""
        start = len(self.shown)

        def has_appeared() -> bool:
            ready, _, _ = select.select([self.fd], [], [], 0.3)
            if ready:
                try:
                    part = os.read(self.fd, 65536)
                except OSError:
                    part = b""
                if not part:
                    return True
                self.shown += part
            new = self.shown[start:]
            if isinstance(words, str):
                return words.encode() in new
            return not ready and words.search(new) is not None

        wait_until(has_appeared)
        return self.shown[start:].decode(errors="replace")

    def type(self, line: str) -> None:
        os.write(self.fd, line.encode() + b"\n")

    def end(self) -> int:
        """Return the exit code."""
        self.until("\0never")
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)


@contextmanager
def screen(*args: str, **environment: str) -> Iterator[Screen]:
    found = Screen(*args, **environment)
    try:
        yield found
    finally:
        found.kill()


def test_killed_at_every_prompt_it_goes_on_exactly_there() -> None:
    """After each line the terminal is killed and the session resumed; the log is that of one sitting."""
    with screen("start", "--seed", "3", "--minutes", "20", "--scenario", "inference.slots") as first:
        first.until(PROMPT)
    session_id, clarified, prompts = sessions()[0].spec.id, set[str](), 0
    with Runner() as runner:
        while not read(session_id).is_over:
            session = Session.replay(session_id)
            assert session.turn is not None
            candidate = Candidate("excellent", session, runner)
            candidate._clarified = clarified
            for line in typed(session.turn, candidate.reply(session.turn)[0]):
                with screen("resume") as again:
                    again.until(PROMPT)
                    again.type(line)
                    again.until(PROMPT)
                prompts += 1
                if Session.replay(session_id).turn is None:
                    break
    turns = [line["turn"] for line in read(session_id).lines]
    assert prompts > 20 and len(turns) == len(set(turns))
    whole = Session.replay(session_id)
    assert whole.is_over and whole.talk.evidence


def test_ctrl_c_stops_a_run_but_not_the_interview_and_at_a_prompt_leaves(tmp_path: Path) -> None:
    with screen(
        "start", "--seed", "3", PREP_EXPERIMENTS=str(_slow_experiment(tmp_path)), **_own(tmp_path)
    ) as it:
        for line in (*WARM, *PROSE, *PROBE, "h", "p", "61", "50..70", "70", "3", "100", "", ""):
            it.until(PROMPT)
            it.type(line)
        it.until("running own.sleepy")
        wait_until((tmp_path / "experiments" / "own" / "begun").exists)
        it.type("2")  # answers nothing: it is typed during the run
        os.write(it.fd, b"\x03")
        told = it.until(PROMPT)
        assert "The run failed (the run was interrupted)" in " ".join(told.split()), told
        assert "2\r\n" not in told.split("number of the option >")[-1]
        os.write(it.fd, b"\x03")
        assert it.end() == 130
    assert b"prep mock resume" in it.shown and b"Traceback" not in it.shown
    assert sessions()[0].lines[-1]["reply"] == {"failed": "the run was interrupted"}


def _slow_experiment(folder: Path) -> Path:
    (folder / "experiments" / "own").mkdir(parents=True)
    (folder / "experiments" / "own" / "sleepy.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "from quizzes.experiments.registry import Result, arg, experiment\n\n\n"
        "@experiment()\n"
        "def sleepy(slots: int = arg(4, 1, 64)) -> Result:\n"
        '    """Sleep.\n\n    Returns:\n        continuous_steps [steps]\n    """\n'
        "    Path(__file__).with_name('begun').touch()\n"
        "    time.sleep(60)\n"
        "    return Result(continuous_steps=slots)\n"
    )
    return folder / "experiments"


def _own(folder: Path) -> dict[str, str]:
    """Return the environment of a scenario whose first experiment sleeps."""
    text = (SCENARIOS / "inference" / "slots.yaml").read_text()
    changed = text.replace(
        "{run: batching.static_vs_continuous, args: {slots: =said.own.slots, lens: =lens}}",
        "{run: own.sleepy, args: {slots: =said.own.slots}}",
    )
    assert changed != text
    (folder / "own" / "inference").mkdir(parents=True)
    (folder / "own" / "inference" / "slots.yaml").write_text(changed)
    return {"PREP_SCENARIOS": str(folder / "own")}


def test_a_live_terminal_gets_prompts_with_a_count_and_no_colour_without_one() -> None:
    with screen("start", "--seed", "3", NO_COLOR="1") as it:
        for line in (*WARM, "three words here"):
            it.until(PROMPT)
            it.type(line)
        assert "  3 | " in it.until(PROMPT)
        it.type("q")
        assert it.end() == 0 and b"\x1b[3" not in it.shown
