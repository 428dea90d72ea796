"""No two claims, cards or answers state opposite facts, and no claim rests on a case that it does not count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from interview.mock.scenario_list import load_scenarios
from lessons.course.lesson_files import lessons
from quizzes.cards.card_list import load_cards
from quizzes.claims import consistency
from quizzes.claims.claim import Claim
from quizzes.claims.claim_list import load_claims
from quizzes.claims.consistency import (
    Subject,
    contradictions,
    kept_verdicts,
    load_subjects,
    outside_cases_told,
)
from quizzes.question_bank import load_bank

CLAIMS, CARDS, BANK = load_claims(), load_cards(), load_bank()
SCENARIOS = load_scenarios()
SUBJECTS = load_subjects()
OPPOSITES = yaml.safe_load(Path(__file__).with_name("opposites.yaml").read_text(encoding="utf-8"))


def told() -> Iterator[tuple[str, str]]:
    """Yield (where, text) of everything that we state as true."""
    for entry in CLAIMS:
        yield from ((entry.id, text) for text in consistency.texts_of_claim(CLAIMS.claim(entry.id)))
    for card in CARDS:
        yield from ((card.id, text) for text in consistency.texts_of_card(CARDS.card(card.id)))
    for question in BANK:
        yield from ((question.id, text) for text in consistency.texts_of_question(BANK.question(question.id)))
    for lesson in lessons():
        yield from ((name, exercise.explain) for name, exercise in lesson.exercises.items())
    for listed in SCENARIOS:
        for step in SCENARIOS.scenario(listed.id).steps:
            yield from ((listed.id, point.say) for point in step.keypoints)
            yield from ((listed.id, text) for text in (step.explain, step.five))


TOLD = list(told())


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.subject)
def test_no_text_says_the_opposite_of_a_fact(subject: Subject) -> None:
    assert list(contradictions(subject, TOLD)) == []


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.subject)
def test_the_opposite_of_a_fact_is_found_in_other_words_and_the_fact_is_not(subject: Subject) -> None:
    wrong, right = OPPOSITES[subject.subject]["wrong"], OPPOSITES[subject.subject]["right"]
    assert len(wrong) >= 2
    assert [text for text in wrong if not list(contradictions(subject, [("", text)]))] == []
    assert list(contradictions(subject, [("", right), ("", subject.says)])) == []


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.subject)
def test_verdicts_on_one_subject_follow_from_one_fact(subject: Subject) -> None:
    kept = kept_verdicts()
    facts = {entry.id: entry.fact for entry in CLAIMS}
    found = {claim_id: kept.get(claim_id) or facts[claim_id] for claim_id, _ in subject.verdicts()}
    assert found == dict(subject.verdicts())


def test_no_wording_tells_a_case_that_its_claim_does_not_count() -> None:
    leaning = {entry.id: outside_cases_told(CLAIMS.claim(entry.id)) for entry in CLAIMS}
    assert {claim_id: cases for claim_id, cases in leaning.items() if cases} == {}


def test_what_is_true_in_practice_and_false_as_worded_is_not_refuted() -> None:
    kept = kept_verdicts()
    for entry in CLAIMS:
        if "true in practice" in CLAIMS.claim(entry.id).wording.lower():
            assert (kept.get(entry.id) or entry.fact) == "depends", entry.id


def test_the_lint_finds_an_opposite_statement_and_a_case_that_is_told_and_not_counted() -> None:
    build = next(subject for subject in SUBJECTS if "TensorRT" in subject.subject)
    said = "In some, at the price of\n compiling per model and GPU."
    assert len(list(contradictions(build, [("S0-05", said), ("S0-06", "that back end is gone")]))) == 1
    claim = CLAIMS.claim("S0-12").model_dump(by_alias=True)
    claim["wording"] = "A light load: {{ results[1].queue_mean_ms[0] }} ms."
    assert len(outside_cases_told(Claim.model_validate(claim))) == 1
