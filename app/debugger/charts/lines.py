"""The component of `lines.js`: small charts over the same steps, with selection of a step or a range."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.debugger.views.small_multiples import Columns

_HERE = Path(__file__).parent
_HTML = """
<div class="lines">
  <div class="grid" role="group" tabindex="0"></div>
  <p class="status" aria-live="polite"></p>
</div>
"""


class Chart(NamedTuple):
    title: str
    unit: str
    columns: Columns
    limit: float | None
    now: str
    """The figure at the chosen step, as text."""


class Answer(NamedTuple):
    """User actions since the last run of the script; None: no such action."""

    picked: int | None
    """The step that was clicked."""
    brushed: tuple[int, int] | None
    """First and last step."""


@cache
def _component() -> Any:
    css, js = (_HERE / "lines.css").read_text(), (_HERE / "lines.js").read_text()
    return st.components.v2.component("prep_lines", html=_HTML, css=css, js=js)


def line_charts(
    charts: Sequence[Chart],
    *,
    end: int,
    step: int,
    range: tuple[int, int] | None,
    marks: Sequence[tuple[int, str, str]],
    alt: str,
    hint: str,
    key: str,
    height: int = 104,
) -> Answer:
    """Draw charts with the same columns. `end`: the step after the last; a mark is (step, kind, text); `height`: pixels
    per chart."""
    data = {
        "charts": [
            {
                "title": chart.title,
                "unit": chart.unit,
                "low": _numbers(chart.columns.low),
                "high": _numbers(chart.columns.high),
                "limit": chart.limit,
                "now": chart.now,
            }
            for chart in charts
        ],
        "first": charts[0].columns.first.tolist() if charts else [],
        "end": end,
        "step": step,
        "range": range,
        "marks": marks,
        "alt": alt,
        "hint": hint,
        "height": height,
    }
    result = _component()(data=data, key=key, on_picked_change=_nothing, on_brushed_change=_nothing)
    brushed = result.brushed
    return Answer(result.picked, (brushed[0], brushed[1]) if brushed else None)


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    """JSON has no nan."""
    return [None if value != value else round(value, 4) for value in values.tolist()]


def _nothing() -> None:
    """A component's trigger requires a callback."""
