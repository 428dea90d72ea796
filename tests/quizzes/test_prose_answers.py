"""Prose labelled by hand, graded for a learner who marks every point a hit and answers every probe right."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from quizzes import question_bank
from quizzes.free_text.lints import lints, says_opposite
from quizzes.free_text.scoring import key_points, score
from quizzes.free_text.sentences import sentences
from quizzes.instance import draw
from quizzes.question import KeyPoint

Row = tuple[str, str, str, list[KeyPoint]]
LABELS = ("right", "stuffed", "negated", "own_words", "nonsense")
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


def is_right(answer: str, points: list[KeyPoint]) -> bool:
    marks = dict.fromkeys((point.id for point in points), "hit")
    probes = {point.id: [True] for point in points}
    return score(points, marks, probes, answer=answer).all_right


def test_a_dishonest_learner_gets_nothing_for_prose_that_is_not_right(rows: list[Row]) -> None:
    asked = Counter(label for _, label, _, _ in rows)
    passed = [(name, label, answer) for name, label, answer, points in rows if is_right(answer, points)]
    right = Counter(label for _, label, _ in passed)
    assert sum(asked.values()) >= 120 and len({name for name, *_ in rows}) >= 20
    assert asked["right"] - right["right"] <= 0.05 * asked["right"]
    assert [each for each in passed if each[1] in ("stuffed", "negated", "nonsense")] == []
    assert right["own_words"] <= UNRECOGNISED


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
