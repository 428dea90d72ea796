"""Verdicts follow from intervals, and the intervals match published tables."""

from __future__ import annotations

import json
from random import Random

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.zoo_eval import _flags
from engine.zoo.corpus import draw_cases
from engine.zoo.gates import Answers, draw_gate_cases, judge, overall, paired_difference, wilson

CASES = draw_cases(400)
RIGHT = [case.answer for case in CASES]


def answers(texts: list[str], loss: float = 0.1) -> Answers:
    return Answers(texts, [-loss * 10] * 100, [10] * 100)


def spoiled(count: int, seed: int = 0) -> list[str]:
    texts = list(RIGHT)
    for index in Random(seed).sample(range(len(texts)), count):
        texts[index] += " or so"
    return texts


def verdicts(candidate: Answers, reference: Answers | None = None) -> dict[str, str]:
    return {gate.name: gate.verdict for gate in judge(CASES, reference or answers(RIGHT), candidate)}


def test_wilson_intervals_are_the_published_ones() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_interval_of_a_paired_difference_covers_the_truth_as_often_as_it_says() -> None:
    rng, covered, rounds = Random(1), 0, 2000
    for _ in range(rounds):
        outcomes = rng.choices(("won", "lost", "same"), weights=(0.03, 0.06, 0.91), k=300)
        low, high = paired_difference(outcomes.count("won"), outcomes.count("lost"), 300)
        covered += low <= -0.03 <= high
    assert 0.93 < covered / rounds < 0.985


def test_a_model_that_answers_alike_passes_everything_with_enough_questions() -> None:
    gates = judge(CASES, answers(RIGHT), answers(RIGHT))
    assert {gate.name for gate in gates} >= {
        "exact match",
        "exact match, ja",
        "exact match, en",
        "exact match, factual",
        "exact match, support",
        "tool calls that parse",
        "perplexity (ratio)",
    }
    assert {gate.name: gate.verdict for gate in gates}["exact match"] == "pass"
    assert all(gate.verdict != "fail" for gate in gates)


@pytest.mark.parametrize("seed", range(3))
def test_two_equal_models_pass_every_gate_at_the_smallest_size(seed: int) -> None:
    """Also with one answer of each group won and another one lost."""
    cases = draw_gate_cases(200, seed, "test")
    equal = [answers([case.answer for case in cases]) for _ in range(2)]
    assert {gate.verdict for gate in judge(cases, *equal, num_drawn=200)} == {"pass"}
    assert len(cases) < 2 * 200


def test_a_model_that_lost_a_fifth_fails() -> None:
    candidate = verdicts(answers(spoiled(80)))
    assert candidate["exact match"] == "fail"


def test_a_small_loss_is_not_decided_by_luck() -> None:
    """Eight of 400 lost: 2 points, exactly the limit."""
    assert verdicts(answers(spoiled(8)))["exact match"] == "inconclusive"


def test_mistakes_of_the_reference_are_not_held_against_the_candidate() -> None:
    both_wrong = spoiled(100)
    assert verdicts(answers(both_wrong), answers(both_wrong))["exact match"] == "pass"


def test_broken_tool_calls_fail_their_own_gate() -> None:
    texts = [text.replace('"}', '"') if "{" in text else text for text in RIGHT]
    broken = verdicts(answers(texts))
    assert broken["tool calls that parse"] == "fail"


def test_perplexity_is_judged_by_its_ratio() -> None:
    assert verdicts(answers(RIGHT, loss=0.101))["perplexity (ratio)"] == "pass"
    assert verdicts(answers(RIGHT, loss=0.2))["perplexity (ratio)"] == "fail"


def test_one_failure_fails_the_whole() -> None:
    assert overall(judge(CASES, answers(RIGHT), answers(spoiled(80)))) == "fail"


@pytest.mark.slow
def test_the_command_compares_a_smaller_cache_and_exits_as_the_gates_say() -> None:
    result = CliRunner().invoke(
        app,
        ["zoo", "eval", "shop", "--gates", "-n", "30", "--kv-cache-dtype", "int8_per_token_head", "--json"],
    )
    report = json.loads(result.stdout)
    assert result.exit_code == {"pass": 0, "fail": 1, "inconclusive": 4}[report["verdict"]]
    by_name = {gate["name"]: gate for gate in report["gates"]}
    assert by_name["perplexity (ratio)"]["difference"] == pytest.approx(1, abs=0.02)
    assert by_name["exact match"]["num_cases"] == 30 <= report["n"]


def test_the_tested_settings_are_told_as_options() -> None:
    settings = {"kv_cache_dtype": "fp8", "enable_prefix_caching": False, "enforce_eager": True, "seed": 0}
    assert _flags(settings) == " --kv-cache-dtype fp8 --no-enable-prefix-caching --enforce-eager"


def test_a_model_is_not_compared_with_itself() -> None:
    result = CliRunner().invoke(app, ["zoo", "eval", "shop", "--gates", "-n", "5"])
    assert result.exit_code == 2 and "compared with itself" in result.output
