"""Verdicts follow from results, and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quizzes.claims.claim import Claim
from quizzes.claims.claim_list import load_claims, read_claims
from quizzes.claims.court import BrokenTest, check_flip, flip, judge, verdict_of
from quizzes.claims.report import brier, figure_line
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.running import run_here
from quizzes.yaml_files import UnknownId

UNEVEN = {"when": "lengths differ", "args": {"lens": [4, 40, 4, 40]}}
EVEN = {"when": "all are as long", "args": {"lens": [9, 9, 9, 9]}}
SLOWER = "result.static_steps > result.continuous_steps"


def claim(*cases: dict[str, Any], **fields: Any) -> Claim:
    test = {"run": "batching.static_vs_continuous", "args": {"slots": 2}, "cases": list(cases)}
    data = {
        "id": "S0-13",
        "topic": "batching",
        "where": "Q4",
        "claim": "Static batching takes more steps.",
        "kind": "simulate",
        "test": {**test, **fields.pop("test", {})},
        "wording": "{{ verdict }}: {{ result.static_steps }} steps",
        **fields,
    }
    return Claim.model_validate(data)


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ([UNEVEN], "confirmed"),
        ([EVEN], "refuted"),
        ([UNEVEN, EVEN], "depends"),
    ],
)
def test_the_engine_decides(cases: list[dict[str, Any]], verdict: str) -> None:
    ruling = judge(claim(*({**case, "holds": SLOWER} for case in cases)), run_here)
    assert ruling.verdict == verdict
    assert ruling.wording.startswith(verdict)
    assert ruling.cases[0].exhibit.keys() == {"static_steps", "continuous_steps"}
    assert ruling.cases[0].args["slots"] == 2


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        ([True], "confirmed"),
        ([True, True], "confirmed"),
        ([False, False], "refuted"),
        ([True, False], "depends"),
        ([True, False, None], "depends"),
        ([True, None], "inconclusive"),
        ([False, None], "inconclusive"),
        ([None], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_cases_make_a_verdict(holds: list[bool | None], verdict: str) -> None:
    assert verdict_of(holds) == verdict


@pytest.mark.parametrize(
    ("form", "holds", "verdict"),
    [
        ("existential", [True, False, None], "confirmed"),
        ("existential", [False, False], "refuted"),
        ("existential", [False, None], "inconclusive"),
        ("universal", [True, False, None], "refuted"),
        ("universal", [True, True], "confirmed"),
        ("universal", [True, None], "inconclusive"),
        ("conjunctive", [True, False], "depends"),
    ],
)
def test_the_form_of_a_claim_says_what_its_cases_decide(
    form: Any, holds: list[bool | None], verdict: str
) -> None:
    assert verdict_of(holds, form) == verdict


FASTER = "result.static_steps < result.continuous_steps"


@pytest.mark.parametrize(
    ("settings", "verdict"), [(("a", "a"), "refuted"), (("a", "b"), "depends"), (("", ""), "refuted")]
)
def test_parts_of_one_setting_must_hold_together(settings: tuple[str, str], verdict: str) -> None:
    parts = [
        {**UNEVEN, "holds": rule, "setting": setting}
        for rule, setting in zip((SLOWER, FASTER), settings, strict=True)
    ]
    assert judge(claim(*parts, test={"form": "conjunctive"}), run_here).verdict == verdict


def test_a_case_outside_the_claim_is_shown_and_not_counted() -> None:
    outside = {**EVEN, "holds": SLOWER, "outside": "the claim speaks of lengths that differ"}
    ruling = judge(claim({**UNEVEN, "holds": SLOWER}, outside), run_here)
    assert ruling.verdict == "confirmed"
    assert [case.holds for case in ruling.cases] == [True, False]
    assert ruling.cases[1].outside
    with pytest.raises(ValueError, match="within the claim's conditions"):
        claim(outside)


OLD = {"ref": "vllm/core/scheduler.py", "version": "0.10.2", "as_of": "2025-09"}


@pytest.mark.parametrize(
    ("then", "today", "verdict"),
    [(SLOWER, FASTER, "outdated"), (SLOWER, SLOWER, "confirmed"), (FASTER, FASTER, "refuted")],
)
def test_what_was_true_of_an_old_release_only_is_outdated(then: str, today: str, verdict: str) -> None:
    ruling = judge(claim({**UNEVEN, "holds": then, "until": OLD}, {**UNEVEN, "holds": today}), run_here)
    assert ruling.verdict == verdict
    assert [case.until for case in ruling.cases] == ["0.10.2", ""]


def test_between_holds_and_fails_nothing_is_decided() -> None:
    case = {**UNEVEN, "holds": "result.speedup > 2", "fails": "result.speedup < 1.5"}
    ruling = judge(claim(case), run_here)
    assert ruling.cases[0].result is not None
    assert 1.5 < ruling.cases[0].result["speedup"] < 2
    assert ruling.verdict == "inconclusive"
    assert "chance" in ruling.reason
    assert ruling.wording == "inconclusive: 80 steps"


def test_a_measurement_that_cannot_say_is_inconclusive_and_has_no_wording() -> None:
    def noisy(name: str, args: dict[str, Any]) -> dict[str, Any]:
        raise Inconclusive("1.01 [0.98, 1.04]")

    ruling = judge(claim({**UNEVEN, "holds": SLOWER}), noisy)
    assert (ruling.verdict, ruling.wording, ruling.reason) == ("inconclusive", "", "1.01 [0.98, 1.04]")


def test_without_the_hardware_a_claim_is_skipped() -> None:
    def nothing(name: str, args: dict[str, Any]) -> dict[str, Any]:
        raise NeedsHardware("no CUDA device")

    ruling = judge(claim({**UNEVEN, "holds": SLOWER}, kind="measure-gpu"), nothing)
    assert (ruling.verdict, ruling.reason) == ("skipped", "needs a GPU")


@pytest.mark.parametrize(
    ("case", "fields", "message"),
    [
        ({"holds": "result.nope > 1"}, {}, "nope"),
        ({"holds": "result.static_steps"}, {}, "not true or false"),
        ({"holds": "true or", "args": {}}, {}, "cannot evaluate"),
        ({"holds": SLOWER, "fails": SLOWER}, {}, "both"),
        ({"holds": SLOWER, "args": {"slots": 0}}, {}, "slots"),
        ({"holds": SLOWER, "args": {"slot": 2}}, {}, "did you mean 'slots'"),
        ({"holds": SLOWER}, {"wording": "{{ result.nope }}"}, "wording"),
        ({"holds": SLOWER}, {"test": {"run": "batching.nothing"}}, "no experiment"),
    ],
)
def test_a_test_that_cannot_decide_is_broken_and_named(
    case: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(BrokenTest, match=f"S0-13.*{message}"):
        judge(claim({**UNEVEN, **case}, **fields), run_here)


def test_the_figure_stands_beside_the_claimed_one() -> None:
    figure = {"value": "=result.speedup", "unit": "x", "says": 3}
    ruling = judge(claim({**UNEVEN, "holds": SLOWER}, test={"figure": figure}), run_here)
    assert ruling.figure is not None
    assert (ruling.figure.value, ruling.figure.says) == (80 / 48, 3)
    assert figure_line(ruling.figure) == "figure: 1.667 x; the claim says 3 x"


def test_facts_and_discussions_are_no_verdicts_of_the_engine() -> None:
    fact = {"verdict": "refuted", "says": "no longer", "source": {"ref": "a page", "version": "0.32"}}
    ruling = judge(_without_test(fact=fact), run_here)
    assert (ruling.verdict, ruling.decided_by) == ("refuted", "fact")
    talk = {"for": "a", "against": "b", "better": "c"}
    ruling = judge(_without_test(discussion=talk, kind="judgement"), run_here)
    assert (ruling.verdict, ruling.decided_by, ruling.wording) == (None, "discussion", "c")


def _without_test(**fields: Any) -> Claim:
    base = {"id": "S0-13", "topic": "batching", "where": "Q4", "claim": "x", "kind": "external-fact"}
    return Claim.model_validate({**base, **fields})


def test_a_flip_turns_the_first_case_over() -> None:
    uneven = claim({**UNEVEN, "holds": SLOWER})
    before, after, flipped = flip(uneven, {"lens": [7, 7]}, run_here)
    assert (before.holds, after.holds, flipped) == (True, False, True)
    assert flip(uneven, {"lens": [1, 50, 1, 50]}, run_here)[2] is False


def test_the_json_of_a_ruling_has_no_full_results() -> None:
    plain = judge(claim({**UNEVEN, "holds": SLOWER}), run_here).to_json()
    assert plain["cases"][0]["exhibit"]["static_steps"] == 80
    assert "result" not in plain["cases"][0]


@pytest.mark.parametrize(
    ("vote", "confidence", "verdict", "score"),
    [
        ("confirmed", 80, "confirmed", 0.04),
        ("confirmed", 80, "depends", 0.64),
        ("depends", 50, "refuted", 0.25),
    ],
)
def test_brier(vote: str, confidence: int, verdict: str, score: float) -> None:
    assert brier(vote, confidence, verdict) == pytest.approx(score)


# ---- the files --------------------------------------------------------------------------------------------------

GOOD = """\
- id: S0-{n:02d}
  topic: batching
  where: Q4
  claim: Static batching takes more steps.
  kind: simulate
  test:
    run: batching.static_vs_continuous
    cases:
      - {{when: always, holds: "result.static_steps > result.continuous_steps"}}
  wording: "{{{{ verdict }}}}"
  flip: {{ask: make them equal, args: {{lens: [7, 7]}}}}
"""


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    folder = tmp_path / "bank"
    folder.mkdir()
    return folder


def test_a_broken_entry_is_named_with_its_line_and_the_others_stay(bank: Path) -> None:
    good, another = GOOD.format(n=1), GOOD.format(n=2)
    (bank / "batching.yaml").write_text(good + another.replace("kind: simulate", "kind: guess"))
    (bank / "memory.yaml").write_text(GOOD.format(n=3) + "  : [")
    (bank / "lora.yaml").write_text(GOOD.format(n=4))
    claims = load_claims(bank)
    assert list(claims.entries) == ["S0-01"]
    problems = {str(problem).split(":")[0]: str(problem) for problem in claims.problems}
    assert problems["batching.yaml"].startswith("batching.yaml:16: kind")
    assert "not valid YAML" in problems["memory.yaml"]
    assert problems["lora.yaml"].startswith("lora.yaml:1: S0-04 has topic batching")


def test_a_file_that_is_not_named_for_a_topic_holds_claims_of_any(bank: Path) -> None:
    (bank / "facts_s0.yaml").write_text(GOOD.format(n=1))
    claims = load_claims(bank)
    assert list(claims.entries) == ["S0-01"]
    assert claims.problems == []


def test_an_id_is_there_once(bank: Path) -> None:
    (bank / "batching.yaml").write_text(GOOD.format(n=1) * 2)
    claims = load_claims(bank)
    assert len(claims) == 1
    assert [str(problem) for problem in claims.problems] == ["batching.yaml:12: S0-01 appears twice"]


def test_a_change_is_seen_and_an_unknown_id_names_a_close_one(bank: Path) -> None:
    (bank / "batching.yaml").write_text(GOOD.format(n=1))
    assert load_claims(bank).claim("s0-01").topic == "batching"
    (bank / "batching.yaml").write_text(GOOD.format(n=1) + GOOD.format(n=2))
    claims = load_claims(bank)
    assert [entry.id for entry in claims] == ["S0-01", "S0-02"]
    with pytest.raises(UnknownId, match=r"did you mean 'S0-01'\?"):
        claims.claim("S0-1")


def test_a_flip_that_does_not_reverse_the_verdict_is_a_broken_test(bank: Path) -> None:
    path = bank / "batching.yaml"
    path.write_text(GOOD.format(n=1))
    check_flip(read_claims(path).claim("S0-01"), run_here)
    path.write_text(GOOD.format(n=1).replace("[7, 7]", "[4, 40, 4, 40, 4, 40]"))
    with pytest.raises(BrokenTest, match="does not reverse the first case"):
        check_flip(read_claims(path).claim("S0-01"), run_here)


def test_the_shipped_claims_load_and_name_experiments_that_exist() -> None:
    from quizzes.experiments.registry import names

    claims = load_claims()
    assert claims.problems == []
    assert {entry.run for entry in claims if entry.run} <= set(names())


def test_one_file_is_read_past_the_cache(bank: Path) -> None:
    path = bank / "batching.yaml"
    path.write_text(GOOD.format(n=7))
    assert list(read_claims(path).entries) == ["S0-07"]
