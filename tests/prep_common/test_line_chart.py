"""Axes of the charts that commands write as SVG."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prep_common.line_chart import Line, draw, round_ticks


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(1.14, [0, 0.2, 0.4, 0.6, 0.8, 1]), (1073, [0, 200, 400, 600, 800, 1000]), (5, [0, 1, 2, 3, 4, 5])],
)
def test_numbers_of_an_axis_are_round(most: float, ticks: list[float]) -> None:
    assert round_ticks(most) == pytest.approx(ticks)


@given(st.floats(1e-300, 1e307))
@example(0.3)
@example(0.6)
@example(1.2)
def test_an_axis_has_three_to_six_numbers_and_none_beyond_it(most: float) -> None:
    found = round_ticks(most)
    assert 3 <= len(found) <= 6 and found[0] == 0 and found[-1] <= most * (1 + 1e-6)


def test_a_chart_is_labelled_with_them() -> None:
    drawn = draw([Line("own", [(0.0, 0.0), (1.14, 1022.0)])], "requests", "EUR")
    assert all(f">{number}</text>" in drawn for number in ("0.2", "1", "200", "1,000"))


@pytest.mark.parametrize("y", [0.0, -3.0, 5e-324])
def test_a_chart_without_positive_numbers_has_an_axis_up_to_one(y: float) -> None:
    assert ">1</text>" in draw([Line("own", [(-1.0, y), (0.0, y)])], "requests", "EUR")


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("is_x", [True, False])
def test_a_chart_refuses_a_number_that_is_not_finite(wrong: float, is_x: bool) -> None:
    point = (wrong, 1.0) if is_x else (1.0, wrong)
    with pytest.raises(ValueError, match=f"a chart needs finite numbers, got {wrong}"):
        draw([Line("own", [(0.0, 0.0), point])], "requests", "EUR")


@pytest.mark.parametrize("most", [0.0, -1.0, 5e-324, math.inf, math.nan])
def test_the_end_of_an_axis_is_positive_and_finite(most: float) -> None:
    with pytest.raises(ValueError, match="the end of an axis"):
        round_ticks(most)
