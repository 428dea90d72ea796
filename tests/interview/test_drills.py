"""Drills: their files, the proofs that are kept, scores, and what is left after a bad end."""

from __future__ import annotations

import datetime as dt
import fcntl
import inspect
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.drill import _Floor
from app.cli.main import app
from engine.config import ConfigError
from interview.drills.checking import Proof, recorded, same_signature
from interview.drills.debrief import lost
from interview.drills.drill import FOLDER, Drill, causes, find_drill, load_drills
from interview.drills.faults import hooks
from interview.drills.figures import FIGURES, LOOKS, Signature, shown
from interview.drills.looks import in_lines, rows
from interview.drills.post_mortem import post_mortem
from interview.drills.running import run
from interview.drills.score import CHANGED, LATE
from interview.drills.session import Result, Session, read
from interview.drills.session import folder as session_folder
from tests.app.debugger.drill_records import run as late_run
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
DRILLS = load_drills()
PROOFS = recorded()
TODAYS = sorted(DRILLS.entries)[dt.date.today().toordinal() % len(DRILLS)]
"""The drill that the slow test runs today: one a day, in turn."""


def prep(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["drill", *arguments], env={"COLUMNS": "80"})
    return done.exit_code, done.output


def test_every_file_is_a_drill_with_its_own_name() -> None:
    assert not DRILLS.problems
    assert sorted(DRILLS.entries) == sorted(path.stem for path in FOLDER.glob("*.yaml"))
    assert len({drill.cause for drill in DRILLS}) == len(DRILLS), "no cause is the most frequent one"


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
def test_hooks_exist_and_take_their_arguments(drill: Drill) -> None:
    last = drill.fault.last.hook if drill.fault.last else None
    for hook in (drill.stage.hook, drill.fault.hook, last, *(fix.hook for fix in drill.fixes)):
        if hook is not None:
            inspect.signature(hooks()[hook.name][1]).bind(**hook.args)


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
def test_the_fault_breaks_the_objective_and_each_right_fix_restores_it(drill: Drill) -> None:
    assert PROOFS[drill.id].problems(drill) == []


def test_signatures_are_pairwise_distinct() -> None:
    assert PROOFS.keys() == DRILLS.entries.keys(), "prep drill check --write"
    assert same_signature(PROOFS) == []


def follow_evidence(drill: Drill, seen: Signature) -> tuple[str, list[str], list[str]]:
    """Return cause, evidence and looks: the hypothesis whose recorded signature is closest to the one seen."""

    def likeness(other: Drill) -> float:
        known = PROOFS[other.id].signature
        return len(known.items() & seen.items()) / max(1, len(known.items() | seen.items()))

    known = [each for each in DRILLS if each.cause in drill.hypotheses and holds(each, seen)]
    best = max(known, key=likeness)
    cheapest = sorted(best.evidence, key=lambda name: LOOKS[FIGURES[name].look].cost)[:2]
    return best.cause, cheapest, sorted({FIGURES[name].look for name in cheapest})


def holds(drill: Drill, seen: Signature) -> bool:
    return all(seen.get(name) == sign for name, sign in drill.evidence.items())


def held(drill: Drill, proof: Proof, looks: list[str], cause: str, evidence: list[str], fix: int) -> Session:
    """Return a session with the recorded runs."""
    session = Session.start(drill)
    session.looked = looks
    session.guess(cause, 80, evidence)
    session.num_fixes = 1
    good = proof.good.get(str(fix), proof.good["faulty"])
    is_met = good >= drill.objective.share
    session.fixed, session.helped_by = ("", Result(proof.faulty, good, is_met)), 1 if is_met else None
    return session


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
def test_following_the_evidence_solves_each_drill_and_guessing_solves_none(drill: Drill) -> None:
    proof = PROOFS[drill.id]
    cause, evidence, looks = follow_evidence(drill, proof.signature)
    score = held(drill, proof, looks, cause, evidence, drill.right_fixes[0]).end()
    assert score.is_solved and score.total == 100
    frequent = Counter(name for each in DRILLS for name in each.hypotheses).most_common()
    guess = next(name for name, _ in frequent if name in drill.hypotheses)
    figure = Counter(name for each in DRILLS for name in each.evidence).most_common(1)[0][0]
    blind = held(drill, proof, [], guess, [figure], 1).end()
    assert not blind.is_solved


def test_confidence_further_fixes_and_dear_looks_have_their_price() -> None:
    drill = DRILLS.entries["seqs-too-high"]
    proof = PROOFS[drill.id]
    two = ["preemptions", "recomputed_tokens"]
    session = held(drill, proof, ["queue", "config", "top"], drill.cause, two, drill.right_fixes[0])
    session.helped_by = 2
    score = session.end()
    assert (score.cause, score.evidence, score.fix, score.looks) == (40, 10, 20, 8), "one of two was seen"
    assert score.brier == pytest.approx(0.04)
    unseen = held(drill, proof, ["cache"], drill.cause, ["preemptions"], drill.right_fixes[0]).end()
    assert unseen.evidence == 0 and not unseen.is_solved
    both = sorted({FIGURES[name].look for name in two})
    assert held(drill, proof, both, drill.cause, two, drill.right_fixes[0]).end().evidence == 20


@pytest.mark.parametrize(("is_right", "points"), [(True, 30), (False, 0)])
def test_a_busy_machine_takes_no_points_from_a_right_fix(is_right: bool, points: int) -> None:
    """A run whose requests are late whatever the fix changed."""
    drill = find_drill("D01")
    session = Session.start(
        drill, runs=lambda stage, load, tell: late_run(drill.changed(drill.fault)[0], load, tell)
    )
    session.run_faulty(print)
    wrong = next(number for number in range(1, 9) if number not in drill.right_fixes)
    assert not session.fix(drill.right_fixes[0] if is_right else wrong, print).is_met
    assert session.end().fix == points
    assert any("this machine was busy" in reason for reason in lost(drill, read(session.id))) == is_right


@pytest.mark.parametrize(
    ("code", "typed", "points"),
    [
        *(("D01", "max-num-seqs=5", 30), ("D01", "--max-num-seqs=5", 30), ("D01", "max-num-seqs=4", 0)),
        ("D11", "max-num-batched-tokens=128 enable-chunked-prefill=true", 30),
        *(("D01", "max-num-seqs=5 max-model-len=64", 0), ("D14", "enable-prefix-caching=true", 30)),
    ],
)
def test_a_right_fix_that_is_typed_as_options_is_one_on_a_busy_machine_too(
    code: str, typed: str, points: int
) -> None:
    drill = find_drill(code)
    session = Session.start(
        drill, runs=lambda stage, load, tell: late_run(drill.changed(drill.fault)[0], load, tell)
    )
    session.run_faulty(print)
    assert not session.fix(typed, print).is_met
    assert session.end().fix == points


def test_a_cause_that_is_stated_after_the_fix_is_no_forecast() -> None:
    drill = DRILLS.entries["seqs-too-high"]
    session = held(drill, PROOFS[drill.id], ["queue"], drill.cause, ["preemptions"], drill.right_fixes[0])
    with pytest.raises(ConfigError, match="stands"):
        session.guess(drill.hypotheses[0], 50, ["preemptions"])
    assert session.end().cause == 40
    session = held(drill, PROOFS[drill.id], ["queue"], drill.cause, ["preemptions"], drill.right_fixes[0])
    session.guesses.clear()
    session.guess(drill.cause, 99, ["preemptions"])
    late = session.end()
    assert (late.cause, late.evidence, late.brier) == (LATE, 10, None)


def test_the_first_hypothesis_is_the_forecast_and_is_not_forgotten() -> None:
    drill = DRILLS.entries["seqs-too-high"]
    wrong = next(name for name in drill.hypotheses if name != drill.cause)
    session = held(drill, PROOFS[drill.id], ["queue"], wrong, ["preemptions"], drill.right_fixes[0])
    session.fixed = None
    session.guess(drill.cause, 99, ["preemptions"])
    changed = session.end()
    assert (changed.cause, changed.brier) == (CHANGED, pytest.approx(0.64)), "80 % sure of the wrong cause"
    events = read(session.id)
    assert any(f"cause: {CHANGED} points" in reason for reason in lost(drill, events))
    document = post_mortem(events)
    assert document.index(causes()[wrong]) < document.index(causes()[drill.cause])


def test_a_healthy_run_that_misses_its_objective_is_repeated_then_ends_the_drill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session.start(DRILLS.entries["overload"])
    shares = [0.1, 1.0]
    session._runs = lambda stage, load, tell: None
    monkeypatch.setattr("interview.drills.session.figures", lambda record, load: {})
    monkeypatch.setattr("interview.drills.session.good_share", lambda *given: shares.pop(0))
    told: list[str] = []
    assert session.run_healthy(told.append).is_met and "once more" in told[0]
    shares += [0.1, 0.2]
    with pytest.raises(ConfigError, match="too busy for a drill"):
        session.run_healthy(told.append)


def test_the_servers_of_two_drills_do_not_run_beside_each_other() -> None:
    drill = DRILLS.entries["overload"]
    folder = session_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "running.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="servers of another drill are running"):
            run(drill.stage, drill.load)


def test_counts_have_no_decimals_and_every_figure_has_its_name_for_readers() -> None:
    assert [shown("preemptions", value) for value in (0.0, 7.0, 230.0)] == ["0", "7", "230"]
    assert shown("waiting_mean", 3.25) == "3.2 requests" and shown("hit_rate", 1.0) == "1.00 share"
    assert len({figure.says for figure in FIGURES.values()}) == len(FIGURES)
    figures = dict.fromkeys(FIGURES, 1.0)
    for name in LOOKS:
        lines = "\n".join(in_lines([], rows(name, figures, figures)))
        assert all(figure.says in lines for figure in FIGURES.values() if figure.look == name)
        assert all(len(line) <= 78 for line in lines.splitlines())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["start", "seqs-to-high", "--script", "x"], "did you mean 'seqs-too-high'?"),
        (["start", "nope", "--script", "x"], "no drill is called 'nope'; prep drill list"),
        (["list", "--level", "4"], "levels are 1 to 3, got 4"),
        (["start", "seqs-too-high"], "needs a terminal, or its commands in a file"),
        (["start", "seqs-too-high", "--script", "none.txt"], "cannot read none.txt"),
        (["report", "yesterday"], "no session of a drill is called 'yesterday'"),
        (["check", "nothing"], "no drill is called 'nothing'"),
    ],
)
def test_wrong_words_get_a_clear_answer(arguments: list[str], says: str) -> None:
    code, output = prep(*arguments)
    assert code == 2 and says in " ".join(output.split())


def test_the_list_tells_symptoms_at_80_columns() -> None:
    code, output = prep("list")
    assert code == 0 and max(map(len, output.splitlines())) <= 80
    assert all(drill.code in output for drill in DRILLS)


def test_the_list_and_the_sessions_give_no_cause_away() -> None:
    numbers = [drill.number for drill in DRILLS]
    assert sorted(numbers) == list(range(1, len(numbers) + 1)), "numbers are unique, without gaps"
    _, output = prep("list")
    assert not [drill.id for drill in DRILLS if drill.id in output]
    assert all(
        find_drill(name).id == drill.id
        for drill in DRILLS
        for name in (drill.code, drill.code.lower(), drill.id)
    )


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.id)
def test_hypotheses_fixes_and_looks_fit_into_80_columns(
    drill: Drill, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    floor = _Floor(Session(drill, tmp_path / "x.jsonl"), terminal.out())
    floor._follow("help", [])
    floor._tell_looks()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 15 and max(map(len, lines)) <= 80
    assert all(line.startswith((" ", "hypotheses", "fixes", "help shows")) for line in lines), lines


def test_without_a_terminal_progress_is_a_line_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.stages("starting") as tell:
        for text in ("yesterday: starting", "yesterday: load: 1 of 9 sent", "today: starting", "today: load"):
            tell(text)
    assert capsys.readouterr().err.splitlines() == ["yesterday: starting", "today: starting"]


@pytest.mark.slow
def test_a_script_solves_todays_drill_on_a_real_server(tmp_path: Path) -> None:
    drill = DRILLS.entries[TODAYS]
    cause, evidence, looks = follow_evidence(drill, PROOFS[drill.id].signature)
    script = tmp_path / "commands.txt"
    lines = [f"look {' '.join(looks)}", f"hypothesis {cause} 90 {','.join(evidence)}"]
    lines.append(f"fix {drill.right_fixes[0]}")
    script.write_text("\n".join(lines))
    code, output = prep("start", drill.id, "--script", str(script), "--json")
    result = json.loads(output[output.index("{") :])
    assert code == 0 and result["solved"] and result["total"] == 100, output
    events = read(drill.id)
    kinds = ["start", "healthy", "faulty", "look", "hypothesis", "fix", "end"]
    assert [event["event"] for event in events] == kinds
    seen = {name for name, sign in drill.evidence.items() if sign}
    assert seen <= events[1]["figures"].keys()
    code, document = prep("report", drill.id, "--markdown")
    assert code == 0 and document.startswith(f"# Post-mortem: {drill.title}") and "## Timeline" in document


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_drill_that_is_interrupted_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "commands.txt"
    script.write_text("done")
    command = [sys.executable, "-m", "app.cli.main", "drill", "start", "overload", "--script", str(script)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: processes_with(str(tmp_path / "prep-drill-")))
        servers = processes_with(str(tmp_path / "prep-drill-"))
        wait_until(lambda: any(children_of(server) for server in servers))
        engines = [child for server in servers for child in children_of(server)]
        running.send_signal(number)
        running.wait(30)
        wait_until(lambda: not any(alive(pid) for pid in [*servers, *engines]))
        wait_until(lambda: not list(tmp_path.glob("prep-drill-*")))
    finally:
        running.kill()
        running.wait()


def processes_with(text: str) -> list[int]:
    """Return the servers whose command line has the text."""
    found = []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if text in line and "faulty_server" in line:
            found.append(pid)
    return found


def children_of(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
