"""The component of `lines.js`: small charts over steps with selection, over the last minutes, or of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.debugger.charts import mount
from app.debugger.page_frame import brush, choose
from app.debugger.runs import Run
from app.debugger.views.figures import thin
from app.debugger.views.server_history import Line

if TYPE_CHECKING:
    from app.debugger.views.drill_looks import Charts  # imports the libraries of servers

_HTML = """
<div class="lines">
  <div class="grid" role="group" tabindex="0"></div>
  <p class="status" aria-live="polite"></p>
</div>
"""


class Chart(NamedTuple):
    title: str
    unit: str
    values: NDArray[Any]
    """One per step."""
    limit: float | None
    now: str
    """The figure at the chosen step, as text."""


def line_charts(
    run: Run,
    charts: Sequence[Chart],
    *,
    step: int,
    range: tuple[int, int] | None,
    marks: Sequence[tuple[int, str, str]] = (),
    alt: str,
    hint: str,
    key: str,
    height: int = 104,
) -> None:
    """Draw charts over all steps of a run. A click goes to its step, dragging selects a range for all pages of the run.

    A mark is (step, kind, text); `height`: pixels per chart.
    """
    num_steps = run.index.num_steps
    columns = [thin(chart.values) for chart in charts]
    drawn = [
        _chart(chart.title, chart.unit, chart.limit, chart.now, low, high)
        for chart, (_, low, high) in zip(charts, columns, strict=True)
    ]
    first = columns[0].first.tolist() if columns else []
    view = {"step": step, "range": range, "marks": marks, "alt": alt, "hint": hint, "height": height}
    said = _draw(key, drawn, first, num_steps, **view)
    if said.brushed:
        brush(run, (said.brushed[0], said.brushed[1]))
    if said.picked is not None:
        choose(step=min(said.picked, num_steps - 1))


def time_charts(
    times: Sequence[float],
    lines: Sequence[Line],
    *,
    marks: Sequence[tuple[float, str, str]] = (),
    alt: str,
    hint: str,
    key: str,
    height: int = 64,
) -> None:
    """Draw charts over the time before now. times: begin of each column in seconds, negative; nothing is selected."""
    charts = [
        _chart(line.title, line.unit, line.limit, line.now, np.array(line.low), np.array(line.high))
        for line in lines
    ]
    first = [round(time, 3) for time in times]
    _draw(key, charts, first, 0, marks=marks, alt=alt, hint=hint, height=height)


def run_charts(charts: Charts, *, alt: str, hint: str, key: str, height: int = 84) -> None:
    """Draw figures over the time of a run, with those of an earlier run as a line."""
    drawn = [
        _chart(pair.title, pair.unit, pair.limit, "", today := np.array(pair.today), today)
        | {"before": _numbers(np.array(pair.yesterday))}
        for pair in charts.pairs
    ]
    first = [round(column * charts.width, 3) for column in range(charts.num_columns)]
    end = round(charts.num_columns * charts.width, 3)
    _draw(key, drawn, first, end, axis="run", alt=alt, hint=hint, height=height)


def _chart(
    title: str, unit: str, limit: float | None, now: str, low: NDArray[Any], high: NDArray[Any]
) -> dict[str, Any]:
    return {
        "title": title,
        "unit": unit,
        "limit": limit,
        "now": now,
        "low": _numbers(low),
        "high": _numbers(high),
    }


def _draw(key: str, charts: list[dict[str, Any]], first: list[Any], end: float, **view: Any) -> Any:
    """first: begin of each column; end: of the last one. view: more properties of `lines.js`, such as marks."""
    data = {"charts": charts, "first": first, "end": end, "step": None, "range": None, "marks": (), **view}
    return mount("prep_lines", Path(__file__), data, key, ("picked", "brushed"), html=_HTML)


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    """JSON has no nan."""
    return [None if value != value else round(value, 4) for value in values.tolist()]
