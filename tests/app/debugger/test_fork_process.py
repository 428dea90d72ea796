"""A fork in a process of its own: whatever the scheduler under test does there, a sentence comes back and no mess."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.debugger.fork_process import ForkOutcome, ForkProcess
from app.debugger.own_runs import twin_of
from app.debugger.runs import RECORDED
from engine.trace.fork import fork
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader
from prep_common.child_process import ROOT
from tests.trace.fork_workloads import first_difference
from tests.trace.trace_workloads import random_run
from tests.waiting import wait_until

SCHEDULERS = """
import itertools, os, sys
from engine.core.scheduler import Scheduler

class Loops(Scheduler):
    def schedule(self):
        while self.stats.step == 4:
            pass
        return super().schedule()

class Deaf(Scheduler):
    def schedule(self):
        if self.stats.step == 4:
            sum(itertools.repeat(0))
        return super().schedule()

class Crashes(Scheduler):
    def schedule(self):
        if self.stats.step == 4:
            print("goodbye", file=sys.stderr, flush=True)
            os._exit(9)
        return super().schedule()

class Waits(Scheduler):
    def schedule(self):
        if self.stats.step == 4:
            import time
            time.sleep(60)
        return super().schedule()

class Talks(Scheduler):
    def schedule(self):
        print('{"result": "mine"}')
        return super().schedule()
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording, with a module of a user's schedulers next to it."""
    (tmp_path / "mine.py").write_text(SCHEDULERS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return random_run(tmp_path / "run.itrace", 5).path


def wait(process: ForkProcess) -> ForkOutcome:
    outcome = wait_until(lambda: process.poll(0.2))
    assert outcome is not None
    return outcome


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".py"} - {"__pycache__"}


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.itrace")), ids=lambda path: path.stem)
def test_every_run_that_ships_is_itself_when_it_runs_again(tmp_path: Path, path: Path) -> None:
    """They come from live engines with models: drafts, adapters and swapping are replayed to the block."""
    recorded = TraceReader(path)
    result = fork(recorded, tmp_path / "fork.itrace", at=recorded.num_steps // 2)
    assert result.failure is None and result.notes == []
    assert first_difference(recorded, TraceReader(result.path)) == ""


def test_a_fork_ends_with_its_file_and_nothing_else(source: Path, tmp_path: Path) -> None:
    process = ForkProcess(source, tmp_path / "out.itrace", at=3, changes={"max_num_seqs": "2"})
    outcome = wait(process)
    assert (outcome.failure, outcome.at, outcome.changes) == ("", 3, {"max_num_seqs": 2})
    assert TraceReader(outcome.path).num_steps == outcome.num_steps
    assert left(tmp_path) == {"run.itrace", "out.itrace"}


def test_forks_with_the_same_changes_are_twins_byte_for_byte(source: Path, tmp_path: Path) -> None:
    def forked(name: str, seats: str) -> Path:
        process = ForkProcess(source, tmp_path / f"{name}.itrace", at=3, changes={"max_num_seqs": seats})
        return wait(process).path

    one, other, again = forked("one", "2"), forked("other", "1"), forked("again", "2")
    assert twin_of(again) == one and twin_of(other) is None


def test_what_cannot_be_forked_is_an_error_and_no_file(source: Path, tmp_path: Path) -> None:
    process = ForkProcess(source, tmp_path / "out.itrace", at=3, changes={"num_blocks": 99})
    with pytest.raises(TraceError, match="fork at step 0"):
        wait(process)
    assert left(tmp_path) == {"run.itrace"}


def test_an_endless_loop_is_interrupted_and_named(source: Path, tmp_path: Path) -> None:
    process = ForkProcess(source, tmp_path / "out.itrace", scheduler_cls="mine:Loops", step_limit_s=0.3)
    outcome = wait(process)
    assert outcome.failure.startswith("In step 5, mine:Loops did not return in time (mine.py:")
    assert TraceReader(outcome.path).num_steps == 5


def test_a_loop_that_hears_no_timer_is_killed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.debugger.fork_process.GRACE_S", 0.5)
    process = ForkProcess(source, tmp_path / "out.itrace", scheduler_cls="mine:Deaf", step_limit_s=0.3)
    outcome = wait(process)
    assert "mine:Deaf did not return within" in outcome.failure and outcome.path.exists()
    assert not process._child.is_running


def test_a_crash_of_the_interpreter_is_told_with_its_last_words(source: Path, tmp_path: Path) -> None:
    outcome = wait(ForkProcess(source, tmp_path / "out.itrace", scheduler_cls="mine:Crashes"))
    assert "mine:Crashes ended with exit code 9" in outcome.failure and "goodbye" in outcome.failure
    assert left(tmp_path) == {"run.itrace", "out.itrace"}


def test_what_a_scheduler_prints_is_not_taken_for_news(source: Path, tmp_path: Path) -> None:
    outcome = wait(ForkProcess(source, tmp_path / "out.itrace", scheduler_cls="mine:Talks"))
    assert outcome.failure == "" and outcome.num_steps == TraceReader(source).num_steps


def test_a_cancelled_fork_leaves_nothing(source: Path, tmp_path: Path) -> None:
    process = ForkProcess(source, tmp_path / "out.itrace", scheduler_cls="mine:Loops", step_limit_s=60)
    while process.of == 0:
        process.poll(0.1)
    process.cancel()
    assert not process._child.is_running
    assert left(tmp_path) == {"run.itrace"}


def test_a_file_that_is_no_trace_is_said(tmp_path: Path) -> None:
    (tmp_path / "run.itrace").write_text("no")
    with pytest.raises(TraceError, match="is not a trace"):
        wait(ForkProcess(tmp_path / "run.itrace", tmp_path / "out.itrace"))


def runs(pid: int) -> bool:
    """A process that has ended has no command line, also before it is reaped."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_a_killed_asker_leaves_no_worker_and_no_half_file(tmp_path: Path, source: Path) -> None:
    """Killed in a way that it cannot hear of: kill -9 of `prep app`, a closed terminal."""
    program = (
        "import sys, time; from pathlib import Path; from app.debugger.fork_process import ForkProcess\n"
        "process = ForkProcess(Path(sys.argv[1]), Path(sys.argv[2]), scheduler_cls='mine:Waits')\n"
        "while not process._part.exists() and process.poll(0.05) is None: pass\n"
        "print(process.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(source), str(tmp_path / "fork.itrace")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as asker:
        assert asker.stdout is not None
        worker = int(asker.stdout.readline())
        assert (tmp_path / "fork.itrace.part").exists()
        asker.kill()
    wait_until(lambda: not (tmp_path / "fork.itrace.part").exists() and not runs(worker))
