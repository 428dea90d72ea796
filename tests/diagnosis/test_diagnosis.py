"""The decision trees of `prep diagnose`, on recorded and on live servers."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.main import app
from engine.server.diagnosis.evidence import (
    Evidence,
    EvidenceError,
    Look,
    load,
    log_lines,
    rank_times,
    save,
)
from engine.server.diagnosis.inputs import Case, GatewayFigures, LogFigures, ProbeFigures
from engine.server.diagnosis.options import BASELINE, GATEWAY, LOG, LOOKS, PROBE
from engine.server.diagnosis.tree import TREE
from engine.server.diagnosis.verdict import CannotJudge, diagnose, judge
from engine.server.scrape import Scrape
from interview.drills import running
from interview.drills.drill import load_drills
from tests.diagnosis import record_drills
from tests.diagnosis.record import FOLDER, SCENARIOS

DRILLS = record_drills.FOLDER
LEAST_NAMED = 22
"""Drills whose cause must be named, of those in the catalogue."""
UNSEEN = {"wrong_rope"}
"""Causes that change no figure of a server: its answers are wrong, and an evaluation shows it."""
HEALTHY = sorted([*FOLDER.glob("*.healthy*.gz"), *DRILLS.glob("*.healthy*.gz")])
FAULTS = sorted([*FOLDER.glob("*.fault*.gz"), *DRILLS.glob("*.fault*.gz")])


def healthy_twin(path: Path) -> Evidence:
    return load(path.parent / f"{path.name.split('.')[0]}.healthy.gz")


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.name)
def test_a_recorded_fault_is_named(path: Path) -> None:
    evidence = load(path)
    found = diagnose(evidence, healthy_twin(path))
    if evidence.label in UNSEEN:
        assert found.cause is None, "no other cause is named for it"
        return
    assert found.cause == evidence.label
    assert found.evidence and found.next_step and found.meaning and not found.candidates
    assert found.runner_up not in (None, found.cause) and found.excluded_by
    assert found.path[-1].cause == found.cause and found.path[-1].holds


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.name)
def test_nothing_is_wrong_with_a_healthy_server(path: Path) -> None:
    found = diagnose(load(path), healthy_twin(path))
    assert found.cause is None and not found.candidates


@pytest.mark.parametrize("path", [*FAULTS, *HEALTHY], ids=lambda path: path.name)
def test_without_a_baseline_no_wrong_cause_is_named(path: Path) -> None:
    evidence = load(path)
    for given in (evidence, Evidence(evidence.looks, evidence.ended_at)):
        found = diagnose(given)
        assert found.cause in (None, evidence.label or None)
        assert not found.candidates or found.look in LOOKS


def test_every_scenario_and_every_drill_is_recorded() -> None:
    faults = {path.name.split(".")[0] for path in FAULTS if path.parent == FOLDER}
    drills = {path.name.split(".")[0] for path in FAULTS if path.parent == DRILLS}
    assert faults == set(SCENARIOS) and drills == set(load_drills().entries)
    named = {
        name
        for name in drills
        if record_drills.answer(DRILLS / f"{name}.fault.gz") == load_drills().entries[name].cause
    }
    assert len(named) >= LEAST_NAMED and len(HEALTHY) >= 10


def test_every_cause_of_a_drill_stands_in_the_tree_once() -> None:
    causes = [rule.cause for rule in TREE]
    assert len(causes) == len(set(causes)) and {drill.cause for drill in load_drills()} - UNSEEN <= set(
        causes
    )
    assert all(rule.meaning and rule.next_step for rule in TREE)


LOG_FIGURES = LogFigures(0.4, 0.5, 0.0, 0.0, "", 1.0, 0.0)
PROBE_FIGURES = ProbeFigures(0.01, 0.01, 0.01, 2, 2, "")
GATEWAY_FIGURES = GatewayFigures(True, 2, 0.8, 1.0, 0.5, 2, "new", 0.0, 0.0, 0.02, 0.02, 0.01, 0.01)
ENDED = {"stop": 50.0, "length": 50.0, "abort": 0.0}

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("clock_skew", {"log": {"skew": 3600.0}}),
    ("clock_skew", {"now": {"clock": -40.0}}),
    ("clock_skew", {"now": {"negative": ("request_queue_time",)}}),
    ("request_never_fits", {"now": {"stuck": 0.9, "kv_unowned": 0.0}}),
    ("abort_leak", {"now": {"kv_unowned": 0.3}}),
    ("abort_leak", {"now": {"stuck": 0.9, "kv_unowned": 0.9}}),
    ("bad_canary", {"gateway": {"canary_failed": 0.4}}),
    ("bad_canary", {"gateway": {"canary_ttft": 0.2}}),
    ("gateway_retry_storm", {"gateway": {"attempts_per_response": 1.9}}),
    ("retry_storm", {"now": {"ended": ENDED | {"abort": 60.0}}, "log": {"again": 0.3}}),
    (
        "timeout_too_short",
        {"now": {"ended": ENDED | {"abort": 60.0}, "responses": {"2xx": 100.0, "4xx": 60.0}}},
    ),
    (
        "timeout_too_short",
        {"now": {"ended": ENDED | {"abort": 60.0}}, "probe": {"said": "error 408 in the stream"}},
    ),
    ("model_len_too_short", {"now": {"responses": {"2xx": 100.0, "4xx": 60.0}}}),
    ("queue_limit", {"now": {"rejections": 30.0, "responses": {"2xx": 100.0, "4xx": 30.0}}}),
    ("wrong_stop_id", {"now": {"ended": {"length": 100.0}}, "probe": {"num_ends": 0}}),
    ("wrong_stop_id", {"now": {"ended": {"length": 100.0}}, "": {"probe": None}}),
    ("kv_too_small", {"now": {"preemptions": 30.0, "num_blocks": 500.0}}),
    ("seqs_too_high", {"now": {"preemptions": 30.0}}),
    ("caching_off", {"now": {"caching": False, "hit_rate": None}}),
    ("router_blind", {"now": {"hit_rate": 0.3}, "gateway": {"affinity": False, "hit_rate": 0.3}}),
    ("timestamp_at_head", {"now": {"hit_rate": 0.0}, "log": {"distinct_heads": 0.95}}),
    ("template_changed", {"now": {"hit_rate": 0.1}}),
    ("missing_salt", {"was_log": {"salted": 1.0}}),
    ("lora_storm", {"now": {"lora_slots": 1.0, "lora_wanted": 3.0, "lora_waits": 0.8}}),
    ("chunk_too_small", {"now": {"step_tokens_max": 8.0, "prefill": 0.09, "ttft": 0.1}}),
    ("seqs_too_low", {"now": {"queue": 0.5, "ttft": 0.6, "running_max": 1.0, "kv_max": 0.1}}),
    ("slow_tokenizer", {"now": {"answer": 0.3}, "probe": {"ttft_text": 0.5}}),
    ("slow_event_loop", {"now": {"answer": 0.3}, "probe": {"gap": 0.2}}),
    ("cold_start", {"now": {"ttft_early": 1.0, "ttft_fell": 20.0, "itl_fell": 6.0}}),
    ("draft_mismatch", {"now": {"acceptance": 0.1}}),
    ("chunking_off", {"now": {"itl": 0.01, "itl_p99": 0.3, "step_tokens_max": 1600.0}}),
    ("straggler", {"now": {"itl": 0.03, "itl_p50": 0.03, "prefill": 0.04}, "": {"rank_gap": 0.02}}),
    ("export_in_step", {"now": {"itl": 0.03, "itl_p50": 0.03, "prefill": 0.04}}),
    ("noisy_neighbour", {"now": {"itl": 0.03, "itl_p99": 0.2}}),
    ("unbalanced_rank", {"now": {"itl": 0.03, "prefill": 0.1, "ttft": 0.2}, "": {"rank_gap": 0.02}}),
    (
        "noisy_tenant",
        {
            "now": {"queue": 0.5, "ttft": 0.6, "waiting": 9.0},
            "gateway": {"num_tenants": 1},
            "log": {"heaviest": "shop, priority 0, salt 7", "heaviest_share": 0.9},
        },
    ),
    ("noisy_tenant", {"now": {"queue": 0.5, "ttft": 0.6, "waiting": 9.0}, "gateway": {"tenant_share": 0.9}}),
    (
        "overload",
        {"now": {"arrivals": 60.0, "queue": 0.5, "ttft": 0.6, "waiting": 20.0, "waiting_growth": 30.0}},
    ),
]


def sound_case() -> Case:
    """Return the figures of a recorded healthy server, with further inputs that show nothing wrong."""
    now = Case.of(load(FOLDER / "caching_off.healthy.gz")).now.but(
        ended=ENDED, hit_rate=0.5, itl=0.01, itl_p50=0.01, itl_p99=0.02, prefill=0.02, ttft=0.03, queue=0.001,
        arrivals=8.0, running_max=6.0, waiting=0.0, waiting_growth=0.0, answer=0.005, step_tokens_max=200.0,
        hits_rose=0.0, load_fell=1.0, prompt_len=100.0, output_len=30.0, num_blocks=1000.0, block_size=16.0,
    )  # fmt: skip
    return Case(now, LOG_FIGURES, PROBE_FIGURES, GATEWAY_FIGURES, 0.0, now, LOG_FIGURES)


def test_the_sound_case_is_sound() -> None:
    found = judge(sound_case())
    assert found.cause is None and not found.candidates and not found.cannot_exclude


@pytest.mark.parametrize(
    ("cause", "change"), CHANGES, ids=[f"{cause}-{n}" for n, (cause, _) in enumerate(CHANGES)]
)
def test_one_change_leads_to_its_cause(cause: str, change: dict[str, Any]) -> None:
    case = replace(sound_case(), **change.get("", {}))
    parts = {
        name: replace(getattr(case, name), **fields)
        for name, fields in change.items()
        if name not in ("", "now")
    }
    assert judge(replace(case, now=case.now.but(**change.get("now", {})), **parts)).cause == cause


def test_every_cause_can_be_named() -> None:
    assert {cause for cause, _ in CHANGES} == {rule.cause for rule in TREE}


def test_what_an_input_would_tell_is_said_while_it_is_missing() -> None:
    case = replace(sound_case(), log=None, probe=None, gateway=None, rank_gap=None, was=None, was_log=None)
    needs = {each.cause: each.needs for each in judge(case).cannot_exclude}
    assert GATEWAY in needs["bad_canary"] and BASELINE in needs["export_in_step"]
    assert LOG in needs["missing_salt"]
    empty = judge(replace(case, empty=frozenset(LOOKS)))
    assert not empty.cannot_exclude, "an input that was given and brought nothing is not asked for again"


def test_candidates_come_with_the_look_that_tells_them_apart() -> None:
    case = replace(sound_case(), probe=None, was=None, was_log=None)
    found = judge(replace(case, now=case.now.but(answer=0.3)))
    assert found.cause is None and found.candidates == ("slow_tokenizer", "slow_event_loop")
    assert found.look == PROBE


def test_a_later_cause_is_not_named_while_an_earlier_one_may_explain_it() -> None:
    case = replace(sound_case(), was=None, was_log=None, probe=None)
    lagging = {"answer": 0.3, "ended": {"length": 100.0}, "acceptance": 0.1}
    found = judge(replace(case, now=case.now.but(**lagging)))
    assert found.cause is None and found.candidates[-1] == "draft_mismatch"


@pytest.mark.parametrize(("difference", "shown"), [(0.6, "less than 1.00 s"), (2.5, "2.50 s")])
def test_a_difference_of_clocks_below_the_resolution_of_a_header_is_not_told(
    difference: float, shown: str
) -> None:
    case = sound_case()
    path = judge(replace(case, now=case.now.but(clock=difference))).path
    assert f"clock differs by {shown}" in path[0].replies[0]


def test_rank_times_are_read_from_a_servers_output() -> None:
    text = "INFO ready\nrank 0: 8.5 ms of a step outside of all-reduce\nrank 1: 33.0 ms of a step outside of"
    assert rank_times(text) == {"0": [8.5], "1": [33.0]}


def idle(*moments: tuple[float, float]) -> Evidence:
    looks = [Look(Scrape.of(f"vllm:prompt_tokens_total {tokens}", when=when)) for when, tokens in moments]
    return Evidence(tuple(looks), 0.0)


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (idle((0.0, 5)), "shorter than"),
        (idle((0.0, 5), (0.2, 9)), "shorter than"),
        (idle((0.0, 5), (5.0, 5)), "no traffic"),
        (idle((0.0, 5), (2.0, 3), (5.0, 9)), "restarted"),
    ],
)
def test_evidence_that_allows_no_statement_is_refused(evidence: Evidence, words: str) -> None:
    with pytest.raises(CannotJudge, match=words):
        diagnose(evidence)


def test_saved_evidence_is_read_back_whole(tmp_path: Path) -> None:
    evidence = load(FAULTS[0])
    save(evidence, tmp_path / "copy.gz")
    assert load(tmp_path / "copy.gz") == evidence


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b broken", b"{}", b"\x1f\x8b\x08"])
def test_a_file_without_evidence_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "wrong.gz"
    path.write_bytes(content)
    with pytest.raises(EvidenceError):
        load(path)
    result = CliRunner().invoke(app, ["diagnose", str(path)])
    assert result.exit_code == 2 and "holds no evidence" in result.output


def test_half_a_line_of_a_log_and_requests_of_the_probe_are_left_out() -> None:
    ours = '{"arrival": 2.0, "prompt": 5, "request_id": "cmpl-prep-probe-7"}'
    logged = '{"arrival": 1.0, "prompt": 5, "secret": 1}\n[1]\n{"arrival": "now"}\n' + ours + '\n{"arri'
    assert log_lines(logged) == ({"arrival": 1.0, "prompt": 5},)


def test_the_command_prints_the_path_and_ends_with_the_codes_of_its_answers(tmp_path: Path) -> None:
    run = CliRunner().invoke
    fault = FOLDER / "caching_off.fault.gz"
    wrong = run(app, ["diagnose", str(fault), "--baseline", str(FOLDER / "caching_off.healthy.gz")])
    assert wrong.exit_code == 1 and "Cause:" in wrong.output and "Runner-up:" in wrong.output
    whole = load(DRILLS / "slow-tokenizer.fault.gz")
    save(Evidence(whole.looks, whole.ended_at), tmp_path / "metrics.gz")
    open_ = run(app, ["diagnose", str(tmp_path / "metrics.gz")])
    assert open_.exit_code == 4 and "Candidates:" in open_.output
    right = run(app, ["diagnose", str(FOLDER / "caching_off.healthy.gz"), "--json"])
    assert right.exit_code == 0 and json.loads(right.output)["cause"] is None
    away = run(app, ["diagnose", "http://127.0.0.1:9", "--window", "1"])
    assert away.exit_code == 3 and "no server" in away.output
    log = run(app, ["diagnose", "http://127.0.0.1:9", "--request-log", "/nowhere/log"])
    assert log.exit_code == 2 and "cannot read" in log.output


def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # for Rich, a terminal
    monkeypatch.setenv("COLUMNS", "80")
    for path in (FAULTS[0], HEALTHY[0]):
        lines = CliRunner().invoke(app, ["diagnose", str(path)]).output.splitlines()
        assert len(lines) > 5 and max(map(len, lines)) <= 80


def test_an_address_without_a_server_is_told_before_any_watching() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # a port that does not listen
        result = CliRunner().invoke(app, ["diagnose", f"http://127.0.0.1:{taken.getsockname()[1]}"])
    assert result.exit_code == terminal.ENVIRONMENT and "watching" not in result.output
    assert "127.0.0.1" in result.output


@pytest.mark.slow
def test_a_live_drill_behind_a_gateway_is_diagnosed() -> None:
    drill = load_drills().entries["router-blind"]
    stage, work = drill.changed(drill.fault)
    with running.started(stage) as rig, ThreadPoolExecutor(1) as beside:
        arguments = ["diagnose", *rig.urls, "--gateway", rig.entry, "--probe", "--json"]
        arguments += ["--window", str(work.seconds + 1), "--baseline", str(DRILLS / f"{drill.id}.healthy.gz")]
        for path in rig.paths("requests"):
            path.touch()
            arguments += ["--request-log", str(path)]
        watching = beside.submit(CliRunner().invoke, app, arguments)
        uvloop.run(running.watched(rig, work))
        result = watching.result()
    assert result.exit_code == 1 and json.loads(result.stdout)["cause"] == drill.cause
