"""The decision trees of `prep diagnose`, on recorded and on live servers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from engine.server.diagnosis.causes import ABOUT, Cause
from engine.server.diagnosis.evidence import Evidence, EvidenceError, Look, load, log_lines, save
from engine.server.diagnosis.figures import Case, GatewayFigures, LogFigures, ProbeFigures
from engine.server.diagnosis.tree import TREE
from engine.server.diagnosis.verdict import CannotJudge, diagnose, judge
from engine.server.scrape import Scrape
from tests.diagnosis.record import FOLDER, SCENARIOS, recorded

DRILLS = FOLDER.parent / "recorded_drills"
HEALTHY = sorted([*FOLDER.glob("*.healthy*.gz"), *DRILLS.glob("*.healthy*.gz")])
FAULTS = sorted([*FOLDER.glob("*.fault.gz"), *DRILLS.glob("*.fault.gz")])


def healthy_twin(path: Path) -> Evidence:
    return load(path.parent / f"{path.name.split('.')[0]}.healthy.gz")


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.name)
def test_a_recorded_fault_is_named(path: Path) -> None:
    evidence = load(path)
    found = diagnose(evidence, healthy_twin(path))
    assert found.cause == evidence.label
    assert (
        found.evidence
        and found.next_step
        and found.runner_up not in (None, found.cause)
        and found.excluded_by
    )
    assert found.path[-1].cause == found.cause and found.path[-1].holds


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.name)
def test_nothing_is_wrong_with_a_healthy_server(path: Path) -> None:
    evidence = load(path)
    assert diagnose(evidence).cause is None
    assert diagnose(evidence, healthy_twin(path)).cause is None


def test_every_scenario_is_recorded() -> None:
    names = {path.name.split(".")[0] for path in FAULTS if path.parent == FOLDER}
    assert names == set(SCENARIOS) and len(HEALTHY) >= 10


def test_every_cause_stands_in_one_branch_and_is_explained() -> None:
    placed = [cause for branch in TREE for cause in branch.rules]
    assert sorted(placed) == sorted(Cause) and set(ABOUT) == set(Cause)


LOG = LogFigures(100, 0.1, 0.4, 0.5, 48, 0.0, 0.0, "", 1.0, 0.0, False)
PROBE = ProbeFigures(0.01, 0.01, 0.01, 1.0, False, 0.0, "")
GATEWAY = GatewayFigures(
    True, 2, 0.8, 0.7, 0.9, 1.0, 0.0, "a", 0.5, 2, "new", 0.0, 0.0, 0.02, 0.02, 0.01, 0.01
)
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
    ("wrong_stop_id", {"now": {"ended": {"length": 100.0}}, "probe": {"ends": 0.0}}),
    ("wrong_stop_id", {"now": {"ended": {"length": 100.0}}}),
    ("kv_too_small", {"now": {"preemptions": 30.0, "num_blocks": 500.0}}),
    ("seqs_too_high", {"now": {"preemptions": 30.0}}),
    ("caching_off", {"now": {"caching": False, "hit_rate": None}}),
    ("router_blind", {"now": {"hit_rate": 0.3}, "gateway": {"affinity": False, "hit_rate": 0.3}}),
    ("timestamp_at_head", {"now": {"hit_rate": 0.0}, "log": {"distinct_heads": 0.95}}),
    ("template_changed", {"now": {"hit_rate": 0.1}}),
    ("missing_salt", {"probe": {"differs": True}}),
    ("lora_storm", {"now": {"lora_slots": 1.0, "lora_wanted": 3.0, "lora_waits": 0.8}}),
    ("chunk_too_small", {"now": {"step_tokens_max": 8.0, "prefill": 0.09, "ttft": 0.1}}),
    ("seqs_too_low", {"now": {"queue": 0.5, "ttft": 0.6, "running_max": 1.0, "kv_max": 0.1}}),
    ("slow_tokenizer", {"now": {"answer": 0.3}, "probe": {"ttft_text": 0.5}}),
    ("slow_event_loop", {"now": {"answer": 0.3}, "probe": {"ttft_ids": 0.2, "ttft_text": 0.2}}),
    ("cold_start", {"now": {"ttft_early": 1.0, "ttft_late": 0.02}}),
    ("draft_mismatch", {"now": {"acceptance": 0.1}}),
    ("chunking_off", {"now": {"itl": 0.01, "itl_p99": 0.3, "step_tokens_max": 1600.0}}),
    ("straggler", {"now": {"itl": 0.03, "prefill": 0.06, "ttft": 0.07}}),
    ("export_in_step", {"now": {"itl": 0.03}}),
    ("noisy_neighbour", {"now": {"itl": 0.03, "itl_spread": 1.2}}),
    ("unbalanced_rank", {"now": {"itl": 0.03, "prefill": 0.1, "ttft": 0.2}}),
    ("noisy_tenant", {"now": {"queue": 0.5, "ttft": 0.6}, "gateway": {"tenant_share": 0.9}}),
    (
        "overload",
        {"now": {"arrivals": 60.0, "queue": 0.5, "ttft": 0.6, "waiting": 20.0, "waiting_growth": 30.0}},
    ),
]


def sound_case() -> Case:
    """Return the figures of a recorded healthy server, with further inputs that show nothing wrong."""
    now = Case.of(load(FOLDER / "caching_off.healthy.gz")).now
    sizes = {"prompt_len": 100.0, "output_len": 30.0, "num_blocks": 1000.0, "block_size": 16.0}
    now = replace(
        now, ended=ENDED, hit_rate=0.5, itl=0.01, itl_p99=0.02, itl_spread=0.1, prefill=0.02, ttft=0.03,
        queue=0.001, arrivals=8.0, running_max=6.0, waiting=0.0, waiting_growth=0.0, answer=0.005,
        step_tokens_max=200.0, **sizes,
    )  # fmt: skip
    return Case(now, LOG, PROBE, GATEWAY, replace(now), LOG)


def test_the_sound_case_is_sound() -> None:
    assert judge(sound_case()).cause is None


@pytest.mark.parametrize(
    ("cause", "change"), CHANGES, ids=[f"{cause}-{n}" for n, (cause, _) in enumerate(CHANGES)]
)
def test_one_change_leads_to_its_cause(cause: str, change: dict[str, Any]) -> None:
    case = sound_case()
    parts = {name: replace(getattr(case, name), **fields) for name, fields in change.items()}
    assert judge(replace(case, **parts)).cause == cause


def test_every_cause_can_be_named() -> None:
    assert {cause for cause, _ in CHANGES} == set(Cause)


def test_what_an_input_would_tell_is_said_when_it_is_missing() -> None:
    case = replace(sound_case(), log=None, probe=None, gateway=None, was=None, was_log=None)
    needs = {each.cause: each.needs for each in judge(case).cannot_exclude}
    assert "--gateway" in needs[Cause.BAD_CANARY] and "--baseline" in needs[Cause.STRAGGLER]
    assert "--probe" in needs[Cause.MISSING_SALT]
    assert not judge(sound_case()).cannot_exclude


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


def test_half_a_line_of_a_log_is_left_out() -> None:
    assert log_lines('{"arrival": 1.0, "prompt": 5, "secret": 1}\n[1]\n{"arri') == (
        {"arrival": 1.0, "prompt": 5},
    )


def test_the_command_prints_the_path_and_ends_with_the_codes_of_its_answers() -> None:
    run = CliRunner().invoke
    wrong = run(
        app,
        [
            "diagnose",
            str(FAULTS[0]),
            "--baseline",
            str(FAULTS[0]).replace("fault", "healthy"),
        ],
    )
    assert wrong.exit_code == 1 and "Cause:" in wrong.output and "Runner-up:" in wrong.output
    right = run(app, ["diagnose", str(HEALTHY[0]), "--json"])
    assert right.exit_code == 0 and json.loads(right.output)["cause"] is None
    away = run(app, ["diagnose", "http://127.0.0.1:9", "--window", "1"])
    assert away.exit_code == 3 and "no server" in away.output
    log = run(app, ["diagnose", "http://127.0.0.1:9", "--request-log", "/nowhere/log"])
    assert log.exit_code == 2 and "cannot read" in log.output


@pytest.mark.slow
def test_a_live_server_with_too_few_blocks_is_diagnosed() -> None:
    scenario = SCENARIOS["kv_too_small"]
    evidence = recorded(scenario.fault, scenario.traffic)
    found = diagnose(evidence, load(FOLDER / "kv_too_small.healthy.gz"))
    assert found.cause is Cause.KV_TOO_SMALL
    assert evidence.probe and not any(answer.error for answer in evidence.probe)
