"""`prep trace diff` and `prep trace fork`, with everything that can be asked wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import trace_compare
from app.cli.main import app
from app.debugger.fork_process import ForkProcess
from engine.trace.diff import diff
from engine.trace.reader import TraceReader
from tests.trace.trace_workloads import random_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return random_run(tmp_path / "run.itrace", 0, num_requests=20).path.name


def prep(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["trace", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_a_fork_ends_with_the_comparison_and_the_next_command(run: str) -> None:
    result = prep("fork", run, "--at", 20, "--set", "max_num_batched_tokens=3")
    assert "First different decision: step" in result.stdout and "max_num_batched_tokens" in result.stdout
    assert "prep app --trace run-at20.itrace" in result.stderr
    assert Path("run-at20.itrace").is_file()
    found = diff(TraceReader(run), TraceReader("run-at20.itrace"))
    assert found.first is not None
    assert (
        f"step {found.first.step}" in result.stdout and found.first.b.decided.split(".")[0] in result.stdout
    )
    for reason in (*found.first.a.reasons, *found.first.b.reasons):
        assert reason in result.stdout


def test_json_has_the_fork_and_the_whole_diff(run: str) -> None:
    said = json.loads(prep("fork", run, "--set", "policy=priority", "-o", "other.itrace", "--json").stdout)
    assert said["fork"]["changes"] == {"scheduling_policy": "priority"} and said["fork"]["failure"] == ""
    assert len(said["diff"]["requests"]) == len(TraceReader(run).requests)
    again = json.loads(prep("diff", run, "other.itrace", "--json").stdout)
    assert again == said["diff"]


def test_nothing_changed_differs_in_nothing(run: str) -> None:
    result = prep("fork", run, "--at", 5)
    assert "The runs are identical: every decision and every block id." in result.stdout
    assert "Without --set or --scheduler a fork repeats the recorded run." in result.stderr
    assert f"prep trace fork {run} --at 5 --set max_num_batched_tokens=64" in result.stderr
    assert "The runs are identical" in prep("diff", run, run).stdout
    assert "Without --set" not in prep("fork", run, "--set", "max_num_seqs=2").stderr


def test_a_second_fork_does_not_take_the_first_ones_place(run: str) -> None:
    prep("fork", run, "--at", 5)
    prep("fork", run, "--at", 5)
    assert Path("run-at5.itrace").is_file() and Path("run-at5-2.itrace").is_file()


def test_an_example_scheduler_takes_over(run: str) -> None:
    name = "app.debugger.example_schedulers:ShortestFirst"
    assert name in prep("fork", run, "--at", 20, "--scheduler", name).stdout


def test_a_scheduler_that_fails_is_named_and_its_run_kept(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from engine.core.scheduler import Scheduler\n"
        "class Bad(Scheduler):\n"
        "    def schedule(self):\n"
        "        if self.stats.step == 7: raise ValueError('I am lost')\n"
        "        return super().schedule()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = prep("fork", run, "--scheduler", "mine:Bad", code=1)
    assert "In step 8, mine:Bad raised ValueError: I am lost (mine.py:4)" in result.stderr
    assert TraceReader("run-at0.itrace").num_steps == 8


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--set", "max_num_batched_tokns=4"), "did you mean 'max_num_batched_tokens'"),
        (("--set", "max_num_seqs"), "has no value"),
        (("--at", "7", "--set", "num_blocks=9"), "fork at step 0"),
        (("--at", "100000"), "its steps are 0 to"),
        (("--scheduler", "nowhere:Nothing"), "cannot be imported"),
        (("-o", "run.itrace"), "exists"),
        (("-o", "no/such/folder.itrace"), "there is no folder"),
    ],
)
def test_what_is_asked_wrongly_is_said_and_leaves_no_file(
    run: str, arguments: tuple[str, ...], complaint: str
) -> None:
    before = set(Path().iterdir())
    assert complaint in prep("fork", run, *arguments, code=2).stderr.replace("\n", " ")
    assert set(Path().iterdir()) == before


def test_what_is_no_trace_is_said(run: str) -> None:
    Path("no.itrace").write_text("no")
    assert "is not a trace" in prep("fork", "no.itrace", code=2).stderr
    assert "is not a trace" in prep("diff", run, "no.itrace", code=2).stderr


def test_ctrl_c_leaves_no_mess(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(process: ForkProcess, timeout_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ForkProcess, "poll", interrupted)
    before = set(Path().iterdir())
    prep("fork", run, code=130)
    assert set(Path().iterdir()) == before


def test_forks_of_other_workloads_are_marked(run: str) -> None:
    random_run(Path("other.itrace"), 1)
    text = prep("diff", run, "other.itrace").stdout
    assert "the workloads differ" in text and "Requests are matched by id" in text


def test_the_table_begins_with_the_largest_change(run: str) -> None:
    prep("fork", run, "--set", "max_num_batched_tokens=3", "-o", "slow.itrace")
    found = diff(TraceReader(run), TraceReader("slow.itrace"))
    ranked = sorted(found.requests, key=trace_compare._change, reverse=True)
    distances = [abs((delta.end_step[1] or 0) - (delta.end_step[0] or 0)) for delta in ranked]
    assert distances == sorted(distances, reverse=True) and distances[0] > 0
