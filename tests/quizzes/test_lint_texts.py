"""Texts that their own figures contradict are found; those that agree with them are left alone."""

from __future__ import annotations

import pytest

from quizzes.lint_texts import false_statements, needs_statement

TRUE = [
    "2 x 8 x 128 x 2 = 4,096 numbers",
    "2 x 80 x 8 x 128 x 2 bytes = 320 KiB per token",
    "16 / 4.156 = 3.85 times fewer bytes",
    "1,603,584 B / 8,192 = 195.8 tokens",
    "128 GPUs x 720 h / 50,000 h = 1.84 failures",
    "0.5 + 7 + 1 + 2.0 = 10.5 ms",
    "60 x 10 % x 200 ms = 1.2 s",
    "(3 + 4) x 2 = 14, and a x 3 = 7",
    "311 steps instead of 420",
    "The mean falls from 12.5 to 3.1 ms and use grows from 40 % to 71 %",
    "one step instead of 2 x 16",
    "5 - 3 = 2 ** 1",
]
FALSE = [
    ("2 x 8 x 128 x 2 = 4,097 numbers", "does not hold"),
    ("2 x 80 x 8 x 128 x 2 bytes = 640 KiB", "does not hold"),
    ("16 / 4.156 = 4.85 times fewer bytes", "does not hold"),
    ("0.5 + 7 + 1 + 2.0 = 11.5 ms", "does not hold"),
    ("12 - 3 = 8", "does not hold"),
    ("311 steps instead of 311", "equal figures"),
    ("12.50 ms rather than 12.5", "equal figures"),
    ("The mean falls from 3.1 to 12.5 ms", "other way"),
    ("it grows from 40 to 40 tokens", "other way"),
]


@pytest.mark.parametrize("text", TRUE)
def test_a_text_that_agrees_with_its_figures_is_left_alone(text: str) -> None:
    assert list(false_statements(text)) == []


@pytest.mark.parametrize(("text", "words"), FALSE)
def test_a_text_that_its_figures_contradict_is_found(text: str, words: str) -> None:
    [found] = false_statements(text)
    assert words in found


def test_a_computed_figure_that_prose_compares_needs_a_statement() -> None:
    assert needs_statement("It is {{ n }} steps. That is fewer than {{ result.steps }} steps.") != ""
    assert needs_statement("It takes {{ n }} steps. Less is better.") == ""
    assert needs_statement("Fewer than {% if n %}some{% endif %} steps.") == ""
