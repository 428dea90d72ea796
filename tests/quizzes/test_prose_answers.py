"""Prose labelled by hand, graded for a learner who marks every point a hit and answers every probe right."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from quizzes import question_bank
from quizzes.free_text.lints import lints, says_opposite
from quizzes.free_text.scoring import Mark, Outcome, is_about, key_points, model_answer, score
from quizzes.free_text.sentences import sentences
from quizzes.instance import draw
from quizzes.question import KeyPoint

Row = tuple[str, str, str, list[KeyPoint]]
BANK = question_bank.load_bank()
MODELS = {
    each.id: model_answer(draw(BANK.question(each.id), 0)) for each in BANK if each.kind in ("free", "design")
}
LABELS = ("right", "stuffed", "negated", "own_words", "nonsense", "long_nonsense")
UNRECOGNISED = 4
"""Negations in own words that only a judge recognises, at most."""


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Question, label, answer and key points of every labelled answer."""
    bank = question_bank.load_bank()
    labelled = yaml.safe_load(Path(__file__).with_name("prose_answers.yaml").read_text())
    points = {name: key_points(draw(bank.question(name), 0)) for name in labelled}
    return [
        (name, label, answer, points[name])
        for name, answers in labelled.items()
        for label in LABELS
        for answer in answers.get(label, [])
    ]


def outcome(answer: str, points: list[KeyPoint], judged: dict[str, Mark] | None = None) -> Outcome:
    marks: dict[str, Mark] = dict.fromkeys((point.id for point in points), "hit")
    probes = {point.id: [True] for point in points}
    return score(points, marks, probes, judged, answer).outcome


def test_a_dishonest_learner_gets_nothing_for_prose_that_is_not_right(rows: list[Row]) -> None:
    asked = Counter(label for _, label, _, _ in rows)
    found = [(label, outcome(answer, points), answer) for _, label, answer, points in rows]
    reviewed = Counter(label for label, result, _ in found if result == "reviewed")
    assert sum(asked.values()) >= 170 and len({name for name, *_ in rows}) >= 20
    assert [each for each in found if each[1] == "right"] == [], "without a judge no prose is right"
    assert reviewed["right"] >= 0.95 * asked["right"]
    assert reviewed["stuffed"] == reviewed["negated"] == reviewed["nonsense"] == 0
    assert reviewed["own_words"] <= UNRECOGNISED


def test_an_all_wrong_essay_fails_whatever_is_marked_and_probed() -> None:
    """The wrong phrasing of each point, marked a hit, with every probe right."""
    bank = question_bank.load_bank()
    asked = [key_points(draw(bank.question(each.id), 0)) for each in bank if each.kind in ("free", "design")]
    wrong = [point.bad[0] for points in asked for point in points if point.bad]
    found = Counter(
        outcome(" ".join(f"{(point.bad or [point.say])[0].rstrip('.')}." for point in points), points)
        for points in asked
    )
    assert len(asked) >= 70 and len(wrong) >= 3 * len(asked)
    assert found == {"wrong": len(asked)}


def test_an_answer_to_another_question_fails_whatever_is_marked_and_probed(rows: list[Row]) -> None:
    every = {name: points for name, _, _, points in rows}
    own = [is_about(points, answer, MODELS[name]) for name, label, answer, points in rows if label == "right"]
    others = [
        is_about(points, answer, MODELS[other])
        for name, label, answer, _ in rows
        for other, points in every.items()
        if label == "right" and other.split(".")[0] != name.split(".")[0]
    ]
    assert all(own) and len(own) >= 60
    assert len(others) >= 500 and sum(others) <= 0.1 * len(others)
    marks, probes = dict.fromkeys((each.id for each in every["attention.why_kv_cache"]), "hit"), {}
    foreign = score(
        every["attention.why_kv_cache"], marks, probes, None, "Soup is best when it is cold. " * 9
    )
    assert (foreign.outcome, foreign.earned) == ("wrong", 0.0)


def test_the_bank_s_own_model_answers_are_about_their_questions() -> None:
    for name, model in MODELS.items():
        interview = BANK.question(name).interview
        points = key_points(draw(BANK.question(name), 0))
        for text in (interview.short, interview.long) if interview is not None else ():
            assert is_about(points, draw(BANK.question(name), 0).render(text), model), name


def test_prose_is_right_if_and_only_if_a_judge_hears_the_points(rows: list[Row]) -> None:
    for name, label, answer, points in rows:
        hears: Mark = "hit" if label == "right" else "miss"
        result = outcome(answer, points, dict.fromkeys((point.id for point in points), hears))
        assert (result == "right") == (label == "right") and result != "reviewed", (name, label, result)


def test_the_question_about_the_opposite_finds_negations_and_leaves_true_sentences_alone(
    rows: list[Row],
) -> None:
    negated = [(answer, points) for _, label, answer, points in rows if label == "negated"]
    asked = [
        any(lint.kind == "opposite" for lint in lints(answer, "free", points)) for answer, points in negated
    ]
    assert sum(asked) >= 0.67 * len(asked)
    true = [
        (each, points) for _, label, answer, points in rows if label == "right" for each in sentences(answer)
    ]
    flagged = [each for each, points in true if any(says_opposite(each, point) for point in points)]
    assert len(flagged) <= 0.05 * len(true), flagged


@pytest.mark.parametrize(
    ("sentence", "is_turned"),
    [
        ("Longer answers count twice: a request holds less KV, so fewer of them run at once.", True),
        ("Longer answers count twice: a request holds more KV, so more of them run at once.", True),
        ("Longer answers count twice: a request holds more KV, so fewer of them run at once.", False),
        ("Longer answers count twice: a request holds more KV, and fewer requests run.", False),
    ],
)
def test_a_point_with_both_directions_is_compared_clause_by_clause(sentence: str, is_turned: bool) -> None:
    say = "Longer answers count twice: a request holds more KV, so fewer of them run at once."
    point = KeyPoint(
        id="twice", say=say, good=["long answers hold more KV and fewer run"], bad=["it is the price"]
    )
    assert says_opposite(sentence, point) == is_turned
