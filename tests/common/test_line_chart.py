"""Axes of the charts that commands write as SVG."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.line_chart import Line, draw, round_ticks


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(1.14, [0, 0.2, 0.4, 0.6, 0.8, 1]), (1073, [0, 200, 400, 600, 800, 1000]), (5, [0, 1, 2, 3, 4, 5])],
)
def test_numbers_of_an_axis_are_round(most: float, ticks: list[float]) -> None:
    assert round_ticks(most) == pytest.approx(ticks)


@given(st.floats(1e-6, 1e12))
def test_an_axis_has_three_to_six_numbers_and_none_beyond_it(most: float) -> None:
    found = round_ticks(most)
    assert 3 <= len(found) <= 6 and found[0] == 0 and found[-1] <= most * (1 + 1e-6)


def test_a_chart_is_labelled_with_them() -> None:
    drawn = draw([Line("own", [(0.0, 0.0), (1.14, 1022.0)])], "requests", "EUR")
    assert all(f">{number}</text>" in drawn for number in ("0.2", "1", "200", "1,000"))
