"""Numbers as text."""

from __future__ import annotations

import pytest

from prep_common.text import counted, duration, figure, gib, join_and, rough_duration, shown


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
    assert counted(2, "matrix", "matrices") == "2 matrices"


@pytest.mark.parametrize(
    ("noun", "plural"),
    [
        ("entry", "entries"), ("cached copy", "cached copies"), ("query", "queries"), ("day", "days"),
        ("batch", "batches"), ("crash", "crashes"), ("miss", "misses"), ("box", "boxes"), ("size", "sizes"),
    ],
)  # fmt: skip
def test_a_count_forms_the_plural_of_its_noun(noun: str, plural: str) -> None:
    assert counted(1, noun) == f"1 {noun}" and counted(2, noun) == f"2 {plural}"


def test_sizes_are_in_gib() -> None:
    assert gib(1.5 * 2**30) == "1.5 GiB" and gib(2**30, 2) == "1.00 GiB"


def test_names_are_joined_as_in_a_sentence() -> None:
    assert [join_and(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_a_figure_has_four_digits_and_no_exponent_below_a_quadrillion() -> None:
    values = [30571.43, 1234.5, 999.96, 0.0123456, 12345, True, 2e15, "l4", -8000.0]
    shown = ["30,571", "1,234", "1000", "0.01235", "12,345", "yes", "2e+15", "l4", "-8,000"]
    assert [figure(value) for value in values] == shown


@pytest.mark.parametrize(
    "value",
    [None, True, 7, 1.5, "a\n", b"a", [], [1, "a"], (), (1,), (1, 2), {}, {"a": [{"b": ()}]}, [None] * 9],
)
def test_a_short_value_is_shown_as_it_is(value: object) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize(
    "value", ["a" * 99, [0] * 99, {str(number): 0 for number in range(99)}, [["b" * 99]]]
)
def test_a_long_value_is_cut(value: object) -> None:
    assert shown(value) == repr(value)[:59] + "…"


def test_the_time_to_show_a_value_does_not_depend_on_its_size() -> None:
    nest: list[object] = []
    for _ in range(10_000):
        nest = [nest]
    assert shown(nest) == "[" * 59 + "…" and shown(10**5000) == "an integer of 16,610 bits"
    assert len(shown(dict.fromkeys(range(10**6)))) == 60
