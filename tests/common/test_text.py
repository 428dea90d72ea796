"""Numbers as text."""

from __future__ import annotations

import pytest

from common.text import counted, duration, figure, gib, join_and, rough_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 µs"), (0.00085, "850 µs"), (0.0123, "12.3 ms"), (1.234, "1.23 s"), (12345.0, "12,345 s")],
)
def test_a_measured_time_has_about_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(40, "40 s"), (170, "3 min"), (5400, "1.5 h")])
def test_an_expected_time_is_rough(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text


def test_counts_agree_in_number() -> None:
    assert [counted(n, "block") for n in (0, 1, 2, 1200)] == [
        "0 blocks",
        "1 block",
        "2 blocks",
        "1,200 blocks",
    ]
    assert counted(2, "entry", "entries") == "2 entries"


def test_sizes_are_in_gib() -> None:
    assert gib(1.5 * 2**30) == "1.5 GiB" and gib(2**30, 2) == "1.00 GiB"


def test_names_are_joined_as_in_a_sentence() -> None:
    assert [join_and(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_a_figure_has_four_digits_and_no_exponent_below_a_quadrillion() -> None:
    values = [30571.43, 1234.5, 999.96, 0.0123456, 12345, True, 2e15, "l4", -8000.0]
    shown = ["30,571", "1,234", "1000", "0.01235", "12,345", "yes", "2e+15", "l4", "-8,000"]
    assert [figure(each) for each in values] == shown
