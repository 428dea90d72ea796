"""Children are heard, limited and ended in one way, and never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prep_common.child_process import ROOT, ChildProcess, JsonChild, ProcessEnded, describe_exit
from tests.waiting import ends_within, has_ended, wait_until

ECHO = "tests.prep_common.echo_child"


@pytest.fixture
def child() -> Iterator[JsonChild]:
    with JsonChild(ECHO, name="the echo") as child:
        yield child


def test_records_arrive_whole_and_in_order(child: JsonChild) -> None:
    values = [1, "two\nlines", {"long": "x" * 300_000}, None, []]
    for value in values:
        child.write({"do": "echo", "value": [value]})
    assert [child.read(timeout=30)[0] for _ in values] == values
    assert child.read(timeout=0.05) is None


def test_an_end_is_told_with_code_and_last_words(child: JsonChild) -> None:
    child.write({"do": "exit", "code": 3, "say": "goodbye"})
    with pytest.raises(ProcessEnded, match="^the echo ended with exit code 3: goodbye$") as raised:
        child.read()
    assert raised.value.exit_code == 3
    with pytest.raises(ProcessEnded):
        child.write({"do": "echo", "value": 1})


def test_a_killed_child_is_told_with_its_signal(child: JsonChild) -> None:
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ProcessEnded, match="was killed by SIGKILL"):
        child.read()
    assert describe_exit(None) == "closed its connection but does not end"


def test_closing_ends_the_child_and_what_it_started(child: JsonChild) -> None:
    child.write({"do": "start"})
    grandchild = child.read()
    child.close()
    child.close()
    assert not child.is_running
    wait_until(lambda: has_ended(grandchild))


def test_a_child_that_does_not_hear_is_killed_after_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    child = JsonChild([sys.executable, "-c", "import time; time.sleep(600)"], name="the deaf", grace_s=0.2)
    wait, in_vain = subprocess.Popen.wait, []

    def counted_wait(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        try:
            return wait(self, timeout)
        except subprocess.TimeoutExpired as expired:
            in_vain.append(expired.timeout)
            raise

    monkeypatch.setattr(subprocess.Popen, "wait", counted_wait)
    with ends_within(60):
        child.close()
    assert child.exit_code() == -signal.SIGKILL
    assert in_vain == [0.2]


def test_a_child_without_a_pipe_is_asked_to_stop_by_a_signal() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(7)); print(flush=True); time.sleep(60)"
    child = ChildProcess(
        [sys.executable, "-c", code], name="a server", stop_signal=signal.SIGTERM, stdout=subprocess.PIPE
    )
    assert child._process.stdout is not None and child._process.stdout.readline()
    child.close()
    assert child.exit_code() == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_ends_when_its_parent_is_killed_in_the_middle_of_an_answer(
    number: int, tmp_path: Path
) -> None:
    program = (
        "import time; from prep_common.child_process import JsonChild\n"
        f"child = JsonChild({ECHO!r}, name='x'); child.write({{'do': 'sleep', 'seconds': 60}})\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.wait()
    wait_until(lambda: has_ended(pid))


def test_ctrl_c_in_the_terminal_does_not_reach_a_child(child: JsonChild) -> None:
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
