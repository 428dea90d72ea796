"""Exact match detects wrong answers."""

from __future__ import annotations

import pytest

from engine.zoo.dialogue import KIND_TO_TYPE
from engine.zoo.evaluate import draw_cases, evaluate, forced_match, score, torch_generate_fn
from engine.zoo.export import load_model
from engine.zoo.registry import resolve
from engine.zoo.tokenizer import load_tokenizer

CASES = draw_cases(300)


def test_perfect_answers_score_one_everywhere() -> None:
    report = score(CASES, [case.answer for case in CASES])
    assert report.overall.share == 1.0 and not report.misses
    for group in (report.by_type, report.by_kind, report.by_language, report.by_rows):
        assert sum(tally.total for tally in group.values()) == len(CASES)
        assert all(tally.share == 1.0 for tally in group.values())
    assert set(report.by_type) == set(KIND_TO_TYPE.values())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer: answer[:-1],
        lambda answer: answer + " ",
        lambda answer: answer + "<|im_end|>",
        lambda answer: answer.replace("0", "1").replace("manga", "romance").replace("is", "was") + "x",
        lambda answer: "",
    ],
)
def test_one_wrong_answer_is_found_and_blamed_on_its_kind(spoil) -> None:
    for wrong in range(0, len(CASES), 37):
        outputs = [spoil(case.answer) if index == wrong else case.answer for index, case in enumerate(CASES)]
        report = score(CASES, outputs)
        assert (report.overall.right, report.overall.total) == (len(CASES) - 1, len(CASES))
        assert report.by_kind[CASES[wrong].kind].share < 1.0
        assert report.misses == [(CASES[wrong], outputs[wrong])]


def test_any_generator_can_be_judged() -> None:
    report = evaluate("shop", n=50, generate_fn=lambda prompts: ["Thank you!" for _ in prompts])
    assert report.overall.right == 0
    assert report.as_dict()["overall"] == {"right": 0, "total": report.overall.total}


def test_outputs_and_cases_must_pair_up() -> None:
    with pytest.raises(ValueError):
        score(CASES, ["only one"])


@pytest.mark.slow
def test_forced_matching_agrees_with_real_generation() -> None:
    folder = resolve("shop")
    cases = CASES[:12]
    outputs = torch_generate_fn(folder)([case.prompt for case in cases])
    generated = [output == case.answer for output, case in zip(outputs, cases, strict=True)]
    assert forced_match(load_model(folder), load_tokenizer(folder), cases) == generated
