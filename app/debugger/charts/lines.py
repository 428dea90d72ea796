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
    data = {
        "charts": [
            {
                "title": title,
                "unit": unit,
                "limit": limit,
                "now": now,
                "low": _numbers(low),
                "high": _numbers(high),
            }
            for (title, unit, _, limit, now), (_, low, high) in zip(charts, columns, strict=True)
        ],
        "first": columns[0].first.tolist() if columns else [],
        "end": num_steps,
        "step": step,
        "range": range,
        "marks": marks,
        "alt": alt,
        "hint": hint,
        "height": height,
    }
    said = _mount(data, key)
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
    data = {
        "charts": [
            {**line._asdict(), "low": _numbers(np.array(line.low)), "high": _numbers(np.array(line.high))}
            for line in lines
        ],
        "first": [round(time, 3) for time in times],
        "end": 0,
        "step": None,
        "range": None,
        "marks": marks,
        "alt": alt,
        "hint": hint,
        "height": height,
    }
    _mount(data, key)


def run_charts(charts: Charts, *, alt: str, hint: str, key: str, height: int = 84) -> None:
    """Draw figures over the time of a run, with those of an earlier run as a line."""
    width, num_columns = charts.width, charts.num_columns
    data = {
        "charts": [
            {
                "title": pair.title,
                "unit": pair.unit,
                "limit": pair.limit,
                "now": "",
                "low": _numbers(np.array(pair.today)),
                "high": _numbers(np.array(pair.today)),
                "before": _numbers(np.array(pair.yesterday)),
            }
            for pair in charts.pairs
        ],
        "first": [round(column * width, 3) for column in range(num_columns)],
        "end": round(num_columns * width, 3),
        "axis": "run",
        "step": None,
        "range": None,
        "marks": [],
        "alt": alt,
        "hint": hint,
        "height": height,
    }
    _mount(data, key)


def _mount(data: dict[str, Any], key: str) -> Any:
    return mount("prep_lines", Path(__file__), data, key, ("picked", "brushed"), html=_HTML)


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    """JSON has no nan."""
    return [None if value != value else round(value, 4) for value in values.tolist()]
