"""A value in a verdict is written as the learner saw it: options by number and words, figures with their unit."""

from __future__ import annotations

from typing import Any

import pytest

from quizzes.answering import LONGEST_OPTION, shown
from quizzes.grading import Part
from quizzes.instance import Instance, draw
from quizzes.question_bank import load_bank

BANK = load_bank()


def instance(question_id: str, seed: int = 3) -> Instance:
    return draw(BANK.question(question_id), seed)


def part(name: str, unit: str = "") -> Part:
    return Part(name, None, None, False, 0.0, 1.0, unit)


@pytest.mark.parametrize("seed", range(4))
def test_a_chosen_option_is_its_number_on_the_screen_and_its_words(seed: int) -> None:
    asked = instance("attention.chunk_equality", seed)
    for number, choice in enumerate(asked.choices(), 1):
        words = " ".join(asked.render(choice.text).split())
        text = shown(asked, part("choice"), [choice.id])
        assert text.startswith(f"{number}: {words[: LONGEST_OPTION - 1]}")
        assert len(text) <= len(f"{number}: ") + LONGEST_OPTION
        assert text.endswith("…") == (len(words) > LONGEST_OPTION)


def test_several_options_are_their_numbers_in_order() -> None:
    asked = instance("attention.flash_or_paged")
    ids = [choice.id for choice in asked.choices()]
    assert shown(asked, part("choice"), [ids[2], ids[0]]) == "1, 3"
    assert shown(asked, part("choice"), [ids[1]]) == "2", "one of several has no words"
    assert shown(asked, part("choice"), []) == "none"


def test_an_order_is_the_numbers_of_its_lines() -> None:
    asked = instance("batching.engine_step_order")
    lines = asked.items()
    assert shown(asked, part("order"), [lines[1], lines[0], *lines[2:]]).split()[:3] == ["2", "1", "3"]


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("steps", 1, "1 step"),
        ("steps", 2, "2 steps"),
        ("steps", 30_571, "30,571 steps"),
        ("ms", 1, "1 ms"),
        ("GiB", 0.0123, "0.0123 GiB"),
        ("", 158.1, "158.1"),
        ("tokens", [1, 2], "[1, 2]"),
    ],
)
def test_a_figure_has_its_unit_in_the_right_number(unit: str, value: Any, text: str) -> None:
    assert shown(instance("batching.batch_window"), part("steps", unit), value) == text
