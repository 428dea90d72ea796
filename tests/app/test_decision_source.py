"""The line that decided: found in the source as it is, for every reason and kind of event."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from app.trace_tools import decision_source
from app.trace_tools.decision_source import (
    EVENTS,
    REASONS,
    Anchor,
    deciding_line,
    event_line,
    find_line,
)
from engine.core.sched_output import Reason
from engine.trace.format import BLOCK_EVENTS, REQUEST_EVENTS, TraceError
from engine.trace.reader import TraceReader
from engine.trace.sentence import main_kind, sentence
from tests.trace.trace_workloads import random_run

ROOT = Path(__file__).resolve().parents[2]


def test_every_reason_has_a_line_and_the_line_gives_that_reason() -> None:
    assert {reason for reason, _ in REASONS} == set(Reason)
    for (reason, _), anchor in REASONS.items():
        line = find_line(anchor)
        assert f"Reason.{reason.name}" in line.code
        assert (ROOT / line.file).read_text().splitlines()[line.line - 1].strip().startswith(line.code)


def test_every_place_in_the_core_that_gives_a_reason_is_known() -> None:
    """A refusal added to the scheduler without an anchor would be explained with another line."""
    given = set()
    for path in (ROOT / "engine/core").glob("*.py"):
        tree = ast.parse(path.read_text())
        compared = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)
        }
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            for node in ast.walk(function):
                is_reason = isinstance(node, ast.Attribute) and ast.unparse(node).startswith("Reason.")
                if is_reason and id(node) not in compared:
                    given.add((function.name, node.attr))
    known = {(anchor.function.rpartition(".")[2], reason.name) for (reason, _), anchor in REASONS.items()}
    assert given == known


def test_every_kind_of_event_has_a_line_that_makes_it_happen() -> None:
    assert {*BLOCK_EVENTS, *REQUEST_EVENTS} - set(EVENTS) == {"finish"}  # by its reason: length, stop, error
    for anchor in EVENTS.values():
        line = find_line(anchor)
        assert "".join(anchor.expression.split()) in "".join(line.code.split())
        assert dict(line.context)[line.line].strip().startswith(line.code) and "#" not in line.code


def test_a_line_that_moved_is_found_and_one_that_is_gone_is_no_other_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_source, "ROOT", tmp_path)
    anchor = Anchor("policy.py", "Policy.pick", "self.take(x)", "why")
    (tmp_path / "policy.py").write_text("class Policy:\n  def pick(self, x):\n    return self.take(x)\n")
    assert find_line(anchor).line == 3
    moved = "\n\nclass Policy:\n  def other(self, x):\n    self.take(x)\n  def pick(self, x):\n    self.take( x )\n"
    (tmp_path / "policy.py").write_text(moved)
    assert find_line(anchor).line == 7
    (tmp_path / "policy.py").write_text("class Policy:\n  def pick(self, y):\n    return self.take(y)\n")
    with pytest.raises(TraceError, match="the code has changed"):
        find_line(anchor)


@pytest.mark.parametrize("seed", range(12))
def test_every_step_of_a_run_has_its_line(tmp_path: Path, seed: int) -> None:
    reader = TraceReader(random_run(tmp_path / "run.itrace", seed).path)
    for step in range(reader.num_steps):
        line = deciding_line(reader, step)
        record = reader.step(step)
        kind = main_kind(reader, step)
        if record.preempted:
            assert (line.function, line.code) == ("Scheduler._make_room", "self._preempt(victim)")
        elif kind == "finish":
            assert line.function in ("_status_after", "Scheduler._fail")
        elif kind == "evict" and "evicted" in sentence(reader, step):
            assert line.function == "BlockPool.take"


def test_a_run_of_other_code_says_that_the_line_is_this_checkouts(tmp_path: Path) -> None:
    reader = TraceReader(random_run(tmp_path / "run.itrace", 0).path)
    assert reader.header["code_rev"] == "test"
    assert "as in this checkout; the run was recorded with test" in event_line(reader, "preempt").note
    reader.header["code_rev"] = decision_source._revision()
    assert event_line(reader, "preempt").note == ""
    with pytest.raises(TraceError, match="no line is known for 'explode'"):
        event_line(reader, "explode")


def test_a_run_with_a_scheduler_of_its_own_points_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = TraceReader(random_run(tmp_path / "run.itrace", 0).path)
    (tmp_path / "my_policy.py").write_text(
        "raise SystemExit('reading must not run this')\n"
        "class Kind(Scheduler):\n"
        "    def _make_room(self, request, num_tokens, plan):\n"
        "        victim = self.running[0]\n"
        "        self._preempt(victim)\n"
        "class Alone:\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def line_with(path: str, kind: str = "preempt") -> decision_source.SourceLine:
        reader.header["scheduler_cls"] = path
        return event_line(reader, kind)

    assert reader.header["scheduler_cls"] == decision_source.OURS
    own = line_with("my_policy:Kind")
    assert (own.file, own.line, own.code) == ("my_policy.py", 5, "self._preempt(victim)")
    assert own.function == "Kind._make_room" and "own scheduler my_policy:Kind" in own.note
    inherited = line_with("my_policy:Kind", "admit")
    assert inherited.file == "engine/core/scheduler.py" and "inherits this" in inherited.note
    assert line_with("my_policy:Alone").code == "class Alone:"
    for missing in ("nowhere.policy:Kind", "Kind"):
        assert "was not found" in line_with(missing).note
        assert line_with(missing).file == "engine/core/scheduler.py"
    assert line_with("my_policy:Kind", "evict").note.count("scheduler") == 0
