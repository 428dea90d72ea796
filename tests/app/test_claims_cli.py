"""`prep claims`: votes before verdicts, verdicts from runs, and how it ends when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli.main import app
from quizzes.claims import claim_list
from quizzes.state import State

BANK = """\
- id: S0-13
  topic: batching
  where: Q4
  claim: A fixed batch makes short requests wait for long ones.
  kind: simulate
  test:
    run: batching.static_vs_continuous
    args: {slots: 2}
    cases:
      - {when: lengths differ, args: {lens: [4, 40, 4, 40]}, holds: "result.static_steps > result.continuous_steps"}
      - {when: all are as long, args: {lens: [9, 9, 9, 9]}, holds: "result.static_steps > result.continuous_steps"}
    figure: {value: "=result.speedup", unit: x, says: 3}
  wording: "Only if lengths differ: {{ results[0].static_steps }} steps against {{ result.continuous_steps }}."
  flip: {ask: Make both take as many steps., args: {lens: [7, 7]}}
- id: S0-14
  topic: batching
  where: Q4
  claim: Twice the slots halve the steps.
  kind: simulate
  test:
    run: batching.static_vs_continuous
    cases:
      - {when: the longest decides, args: {slots: 64}, holds: "result.continuous_steps < max(args.lens)"}
  wording: "No."
- id: S0-15
  topic: batching
  where: Q5
  claim: Another engine did it first.
  kind: external-fact
  fact: {verdict: confirmed, says: They did., source: {ref: Their paper, version: "1", as_of: "2022-07"}}
- id: S0-16
  topic: batching
  where: Q5
  claim: It is worth it.
  kind: judgement
  discussion: {for: It is fast., against: It is work., better: It depends on the lengths.}
"""
BROKEN = """\
- id: S1-01
  topic: batching
  where: Q1
  claim: The answer is unknown.
  kind: simulate
  test:
    run: batching.static_vs_continuous
    cases: [{when: always, holds: "result.nothing > 1"}]
  wording: "?"
"""


@pytest.fixture(autouse=True)
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    folder = tmp_path / "bank"
    folder.mkdir()
    (folder / "batching.yaml").write_text(BANK)
    monkeypatch.setattr(claim_list, "BANK", folder)
    return folder


def claims(*arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["claims", *arguments], input=typed)


def test_a_vote_is_committed_and_scored_against_the_verdict(tmp_path: Path) -> None:
    script = tmp_path / "replies"
    script.write_text("c\n80\n")
    result = claims("vote", "S0-13", "--script", str(script))
    assert result.exit_code == 0, result.output
    out = result.stdout
    assert out.index("Test (fixed before the run)") < out.index("your vote") < out.index("VERDICT  DEPENDS")
    assert "80 steps against 48" in out
    assert "slots=2" in out and "depends" in out, "what the test uses is shown before the vote"
    assert "Brier 0.64" in out
    assert "prep claims flip S0-13" in result.stderr
    with State.open() as state:
        votes = state.votes("S0-13")
    assert [(vote.vote, vote.confidence, vote.verdict) for vote in votes] == [
        ("confirmed", 80, None),
        ("confirmed", 80, "depends"),
    ]


def test_a_reply_that_is_none_is_asked_again_and_q_leaves() -> None:
    result = claims("vote", "S0-14", typed="maybe\nr\n100\n0\n95\n")
    assert result.exit_code == 0, result.output
    assert "type one of: confirmed, refuted, depends, outdated" in result.stdout
    assert result.stdout.count("type a whole number from 1 to 99") == 2
    assert "VERDICT  REFUTED" in result.stdout
    left = claims("vote", "S0-13", typed="q\n")
    assert left.exit_code == 0
    assert "VERDICT" not in left.stdout and "no vote was recorded" in left.stdout
    with State.open() as state:
        assert state.votes("S0-13") == []


def test_without_an_id_the_next_unvoted_claim_comes() -> None:
    assert "S0-13" in claims("vote", typed="d\n60\n").stdout
    assert "S0-14" in claims("vote", typed="r\n60\n").stdout
    fact = claims("vote", typed="c\n60\n").stdout
    assert "S0-15" in fact
    assert "Their paper, version 1, as of 2022-07" in fact
    done = claims("vote")
    assert done.exit_code == 2
    assert "voted on every claim" in done.stderr


def test_a_discussion_is_not_scored() -> None:
    result = claims("vote", "S0-16", typed="\n")
    assert result.exit_code == 0, result.output
    assert "It depends on the lengths." in result.stdout
    assert "VERDICT" not in result.stdout


def test_a_script_that_ends_leaves_before_the_vote_is_committed(tmp_path: Path) -> None:
    script = tmp_path / "replies"
    script.write_text("# a remark\nc\n")
    result = claims("vote", "S0-13", "--script", str(script))
    assert result.exit_code == 0
    assert "VERDICT" not in result.stdout
    with State.open() as state:
        assert state.votes() == []
    assert claims("vote", "S0-13", "--script", str(tmp_path / "none")).exit_code == 2


def test_run_tells_the_verdict_and_other_arguments_are_marked_as_such() -> None:
    result = claims("run", "s0-13")
    assert result.exit_code == 0, result.output
    for words in ("exhibit A", "exhibit B", "static_steps = 80", "figure: 1.667 x; the claim says 3 x"):
        assert words in result.stdout
    changed = claims("run", "S0-13", "--set", "slots=4", "--json")
    assert json.loads(changed.stdout)["verdict"] == "refuted"
    assert json.loads(changed.stdout)["cases"][0]["args"]["slots"] == 4
    assert "runs the original test" in claims("run", "S0-13", "--set", "slots=4").stderr
    (listed,) = [row for row in json.loads(claims("list", "--json").stdout) if row["id"] == "S0-13"]
    assert listed["verdict"] == "depends", "a run with other arguments is no verdict"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "S0-99"), "did you mean 'S0-"),
        (("run", "S0-16"), "no experiment can decide it"),
        (("run", "S0-13", "--set", "slot=4"), "did you mean 'slots'"),
        (("run", "S0-13", "--set", "slots"), "--set needs name=value"),
        (("list", "--verdict", "maybe"), "one of: confirmed"),
        (("list", "--topic", "batchin"), "did you mean 'batching'?"),
        (("list", "--kind", "fact"), "one of: derivable"),
        (("verify", "--quick", "--all"), "exclude each other"),
        (("flip", "S0-14", "--witness"), "has no witness"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = claims(*arguments)
    assert result.exit_code in (1, 2), result.output
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize("command", ["run", "flip"])
def test_a_bad_set_value_is_a_usage_error_that_names_the_argument_and_its_bound(command: str) -> None:
    result = claims(command, "S0-13", "--set", "slots=0")
    assert result.exit_code == 2, result.output
    assert "slots: must be at least 1, got 0" in result.stderr
    assert "correct its file" not in result.stderr


def test_flip_shows_the_challenge_then_judges_attempts() -> None:
    challenge = claims("flip", "S0-13")
    assert "Make both take as many steps." in challenge.stdout
    assert "lens=[4, 40, 4, 40]" in challenge.stdout
    missed = claims("flip", "S0-13", "--set", "slots=3")
    assert missed.exit_code == 1
    assert "unchanged" in missed.stdout
    for arguments in (("--set", "lens=5,5"), ("--witness",)):
        found = claims("flip", "S0-13", *arguments)
        assert found.exit_code == 0, found.output
        assert "reversed" in found.stdout


def test_show_tells_the_test_and_not_its_verdict() -> None:
    claims("run", "S0-13")
    shown = claims("show", "S0-13").stdout
    assert "the claim holds if" in shown
    assert "DEPENDS" not in shown
    assert json.loads(claims("show", "S0-13", "--json").stdout)["test"]["args"] == {"slots": 2}
    assert "CONFIRMED" in claims("show", "S0-15").stdout


def test_verify_runs_every_test_and_list_knows_the_verdicts_afterwards(bank: Path) -> None:
    before = {row["id"]: row["verdict"] for row in json.loads(claims("list", "--json").stdout)}
    assert before == {"S0-13": None, "S0-14": None, "S0-15": "confirmed", "S0-16": None}
    assert "prep claims verify --quick" in claims("list", "--verdict", "refuted").stdout
    result = claims("verify")
    assert result.exit_code == 0, result.output
    assert "2 claims: 1 refuted, 1 depends; 0 broken" in result.stdout
    assert "prep claims verify --quick" not in claims("list", "--verdict", "refuted").stdout
    refuted = claims("list", "--verdict", "refuted").stdout
    assert "S0-14" in refuted
    assert "S0-13" not in refuted
    (bank / "batching.yaml").write_text(BANK + " ")
    after = {row["id"]: row["verdict"] for row in json.loads(claims("list", "--json").stdout)}
    assert after == before, "a changed file has no verdicts yet"


def test_a_broken_test_and_a_broken_file_end_with_1(bank: Path) -> None:
    (bank / "batching.yaml").write_text(BANK + BROKEN)
    result = claims("verify", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert [ruling["verdict"] for ruling in report["rulings"]] == ["depends", "refuted"]
    assert "S1-01" in report["broken"][0]
    (bank / "batching.yaml").write_text(BANK.replace("[7, 7]", "[4, 40, 4, 40]"))
    assert "does not reverse the first case" in claims("verify").stdout.replace("\n", " ")
    (bank / "batching.yaml").write_text(BANK)
    (bank / "memory.yaml").write_text("- id: [")
    result = claims("verify")
    assert result.exit_code == 1
    assert "memory.yaml:1: not valid YAML" in " ".join(result.stdout.split())
    assert "S0-13" in claims("list").stdout


@pytest.mark.parametrize("arguments", [("show", "S0-13"), ("run", "S0-13"), ("flip", "S0-13"), ("verify",)])
def test_screens_fit_80_columns_and_have_no_colour_where_none_is_wanted(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    result = claims(*arguments)
    assert "\x1b[" not in result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
