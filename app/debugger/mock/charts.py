"""Charts of a run: the prediction beside the measured figure, goals of a design, figures over time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import altair as alt
import pandas as pd
import streamlit as st

from app.debugger.mock.texts import plain
from quizzes.experiments.registry import Result, get

SAID, MEASURED = "#56B4E9", "#E69F00"
_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_SAID = re.compile(rf"({_NUMBER})\s*([^\s(]*)(?:.*\(({_NUMBER}) to ({_NUMBER})\))?\s*$", re.IGNORECASE)
_MEASURED = re.compile(rf"({_NUMBER})(?:\s.*)?$", re.IGNORECASE)
TIME = ("t", "time", "times", "time_s", "second", "seconds", "minute", "minutes", "at")
"""Names of a column of times in a result."""
LOOK = {
    "height": 220,
    "background": "transparent",
    "config": {
        "range": {"category": [SAID, MEASURED, "#009E73", "#CC79A7"]},
        "legend": {"orient": "top", "title": None},
        "axis": {"labelAngle": 0, "titleFontSize": 11},
    },
}
"""Style of the charts that experiments bring along."""
LEAST_POINTS = 6
MOST_SERIES = 4
Row = Sequence[Any]


class Compared(NamedTuple):
    """A number that was predicted, and what the run measured."""

    what: str
    unit: str
    said: float
    low: float | None
    high: float | None
    measured: float


def show_run(chart: Mapping[str, Any], key: str, *, coach: bool, is_latest: bool) -> None:
    """Show the run of a turn. Verdicts on predictions are for coached sessions; goals always have theirs."""
    rows: list[Row] = list(chart.get("rows") or ())
    st.html(table(rows, with_verdicts=coach)) if rows else st.empty()
    comparisons = [pair for row in rows if (pair := compared(row)) is not None]
    if comparisons:
        words = "; ".join(
            f"{comparison.what}: said {comparison.said:g}, measured {comparison.measured:g}"
            for comparison in comparisons
        )
        st.altair_chart(predictions(comparisons), alt=words, key=f"{key} said", width="content")
    else:
        st.empty()
    drawn = is_latest and "result" in chart and show_series(str(chart["name"]), chart["result"], key)
    if not drawn:
        st.empty()


def table(rows: Sequence[Row], *, with_verdicts: bool, truth: str = "measured") -> str:
    """Return rows (what, said, measured, right) as an HTML table. truth: heading of the third column."""
    has_said = any(said for _, said, *_ in rows)
    shows = with_verdicts or not has_said
    heads = ["", *(["you said"] if has_said else []), truth, *([""] if shows else [])]
    lines = []
    for what, said, measured, right in rows:
        cells = [f"<th scope='row'>{plain(str(what))}</th>"]
        cells += [f"<td>{plain(str(said))}</td>"] if has_said else []
        cells.append(f"<td>{plain(str(measured))}</td>")
        if shows:
            without = what == "cost" or (has_said and not said)
            words = ("right", "missed") if has_said else ("met", "not met")
            mark = "" if without else f"{'✓' if right else '✗'} {words[0 if right else 1]}"
            cells.append(f"<td class='{'yes' if right else 'no'}'>{mark}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    return f"<table class='mock-rows'><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def compared(row: Row) -> Compared | None:
    """Return the numbers of a row; None if it has none to compare."""
    what, said, measured, _ = row
    given, truth = _SAID.match(str(said)), _MEASURED.match(str(measured))
    if given is None or truth is None:
        return None
    first, unit, low, high = given.groups()
    ends = (_value(low), _value(high)) if low is not None else (None, None)
    return Compared(
        str(what), "" if unit == what else unit or "", _value(first), ends[0], ends[1], _value(truth[1])
    )


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def predictions(answers: Sequence[Compared], truth: str = "measured") -> Any:
    """Draw each prediction as a point with its interval, and the truth as a diamond, on an axis of its own."""
    charts = [_prediction(comparison, truth, is_first=place == 0) for place, comparison in enumerate(answers)]
    return alt.vconcat(
        *charts, spacing=6, background="transparent", padding={"left": 4, "right": 16, "top": 2, "bottom": 2}
    )


def _prediction(comparison: Compared, truth: str, *, is_first: bool) -> Any:
    values = [
        comparison.said,
        comparison.measured,
        *(end for end in (comparison.low, comparison.high) if end is not None),
    ]
    low, high = min(values), max(values)
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    x = alt.X(
        "value:Q",
        title=f"{comparison.what}{f', {comparison.unit}' if comparison.unit else ''}",
        scale=alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False),
        axis=alt.Axis(tickCount=6, titleFontSize=11, titlePadding=2, labelFontSize=11),
    )
    names = ["you said", truth]
    points = pd.DataFrame({"value": [comparison.said, comparison.measured], "what": names})
    legend = alt.Legend(orient="top", title=None, offset=2) if is_first else None
    marks = (
        alt.Chart(points)
        .mark_point(filled=True, opacity=1)
        .encode(
            x=x,
            color=alt.Color("what:N", scale=alt.Scale(domain=names, range=[SAID, MEASURED]), legend=legend),
            shape=alt.Shape(
                "what:N", scale=alt.Scale(domain=names, range=["circle", "diamond"]), legend=legend
            ),
            size=alt.Size("what:N", scale=alt.Scale(domain=names, range=[210, 130]), legend=None),
            tooltip=["what", "value"],
        )
    )
    layers = [marks]
    if comparison.low is not None and comparison.high is not None:
        ends = pd.DataFrame({"value": [comparison.low], "high": [comparison.high]})
        bar = alt.Chart(ends).mark_rule(color=SAID, strokeWidth=10, opacity=0.4, strokeCap="round")
        layers.insert(0, bar.encode(x=x, x2="high:Q"))
    return alt.layer(*layers).properties(height=26, width=640)


def show_series(name: str, result: Mapping[str, Any], key: str) -> bool:
    """Show the experiment's own chart, or its figures over time, if it has any."""
    spec = own_chart(name, result)
    if spec is not None:
        st.vega_lite_chart(spec, key=f"{key} own", width="stretch", alt=f"chart of {name}")
        return True
    over_time = series(result)
    if over_time is None:
        return False
    x, columns = over_time
    frame = pd.DataFrame(columns).melt([x], var_name="figure")
    drawing = (
        alt.Chart(frame)
        .mark_line(color=SAID, strokeWidth=2)
        .encode(x=alt.X(f"{x}:Q"), y=alt.Y("value:Q", title=None), tooltip=[x, "figure", "value"])
        .properties(height=80, width="container")
        .facet(row=alt.Row("figure:N", title=None, header=alt.Header(labelAngle=0, labelAlign="left")))
        .resolve_scale(y="independent")
        .properties(background="transparent")
    )
    names = ", ".join(name for name in columns if name != x)
    st.altair_chart(drawing, key=f"{key} series", alt=f"{names} over {x}", width="stretch")
    return True


def own_chart(name: str, result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the Vega-Lite chart that the experiment draws of its result, if it has one."""
    try:
        draw = get(name).chart
        return None if draw is None else {**draw(Result(**result)), **LOOK}
    except Exception:  # a chart is an extra: whatever is wrong with it, the interview goes on
        return None


def series(result: Mapping[str, Any]) -> tuple[str, dict[str, list[float]]] | None:
    """Return the name of the time axis and the columns of a result's figures over time; None if it has none.

    The result may keep them in a mapping of their own, as columns or as records."""
    for value in (result, *result.values()):
        columns = _columns(value)
        x = next((name for name in columns if name in TIME), None)
        if x is None:
            continue
        others = [name for name in columns if name != x and len(columns[name]) == len(columns[x])]
        if others:
            return x, {name: columns[name] for name in (x, *others[:MOST_SERIES])}
    return None


def _columns(value: Any) -> dict[str, list[float]]:
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        value = {name: [row.get(name) for row in value] for name in value[0]}
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): list(column)
        for name, column in value.items()
        if isinstance(column, list)
        and len(column) >= LEAST_POINTS
        and all(isinstance(cell, int | float) for cell in column)
    }
