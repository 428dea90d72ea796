"""Page Metrics: six figures over all steps with events marked, latencies with limits, and the counters of the run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from app.debugger import session
from app.debugger.charts.lines import Chart, line_charts
from app.debugger.page_frame import brush, brushed_range, opened, run_page
from app.debugger.pages.latency_panel import show_latencies
from app.debugger.runs import Run
from app.debugger.views.figures import EVENTS, Metric, counter_rows, metrics
from app.debugger.views.requests import has_clock
from prep_common.text import counted, figure

MAX_MARKS = 250
"""Maximum marks per kind of event."""


@st.cache_data(max_entries=8, show_spinner="Adding up the counters …")
def _totals(run_id: str, num_steps: int, version: int, _run: Run) -> dict[str, int]:
    return _run.index.counter_totals()


def show() -> None:
    run_page("Metrics", _show)


def _show(run: Run) -> None:
    index = run.index
    clock = has_clock(index.series)
    about_clock = "" if clock else "scripted run: no clock, step times are 0"
    step = opened(run, "Metrics", "metrics", counted(index.num_steps, "step"), about_clock)
    if step is None:
        return
    shown = metrics(index)
    _show_charts(run, shown, step, clock)
    show_latencies(run, clock)
    named = [f"{metric.title.lower()}: `{metric.vllm}`" for metric in shown if metric.vllm]
    st.caption("In vLLM's Prometheus metrics: " + " · ".join(named))
    st.header("Counters of the whole run", anchor=False)
    rows = counter_rows(_totals(run.run_id, index.num_steps, id(run), run))
    if rows:
        st.dataframe(
            pd.DataFrame(rows).replace({"vllm": {"": "–"}}),
            hide_index=True,
            column_config={
                "total": st.column_config.NumberColumn("total", format="localized"),
                "vllm": st.column_config.TextColumn("in vLLM"),
            },
            alt="Counters, their totals, meanings and names in vLLM",
        )
    else:
        st.caption(
            "All counters are 0: this run has no drafts, evictions, transfers, images, grammars or adapters."
        )


def _show_charts(run: Run, shown: list[Metric], step: int, clock: bool) -> None:
    num_steps = run.index.num_steps
    if st.toggle("Show as table", key="metrics_table"):
        frame = pd.DataFrame({metric.title: metric.values for metric in shown})
        frame.insert(0, "step", np.arange(num_steps))
        st.dataframe(frame, hide_index=True, height=360, alt="The six figures of every step")
        return
    charts = [
        Chart(metric.title, metric.unit, metric.values, metric.limit, _text(metric.values[step]))
        for metric in shown
        if metric.name != "step_ms" or clock
    ]
    line_charts(
        run,
        charts,
        step=step,
        range=brushed_range(run),
        marks=_marks(run),
        alt=f"{counted(len(charts), 'chart')} over {counted(num_steps, 'step')}: "
        + "; ".join(map(_in_words, shown)),
        hint="▌ the current step  ▼ preempted  ✕ aborted  • finished. Click: go to that step. Drag: select a range for "
        "the other pages.",
        key="metrics_lines",
    )
    _show_range(run)


def _show_range(run: Run) -> None:
    chosen = brushed_range(run)
    if chosen is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(
            f"Range: {counted(chosen[1] - chosen[0] + 1, 'step')}, {chosen[0]:,} to {chosen[1]:,}.",
            width="content",
        )
        if st.button("Requests in range", key="metrics_requests"):
            session.go("requests")
        if st.button("Clear range", key="metrics_clear"):
            brush(run, None)


def _marks(run: Run) -> list[tuple[int, str, str]]:
    """Events on the charts; in a long run, events in the same column are counted together."""
    num_steps = run.index.num_steps
    width = -(-num_steps // MAX_MARKS)
    marks: list[tuple[int, str, str]] = []
    for kind, words in EVENTS.items():
        steps = run.index.event_steps(kind)
        where, counts = np.unique(steps[steps < num_steps] // width, return_counts=True)
        marks += [
            (int(at) * width, kind, f"{count} {words}") for at, count in zip(where, counts, strict=True)
        ]
    return marks


def _text(value: float) -> str:
    return "—" if value != value else figure(value)


def _in_words(metric: Metric) -> str:
    if not np.any(metric.values == metric.values):
        return f"{metric.title.lower()}: none"
    low, high = np.nanmin(metric.values), np.nanmax(metric.values)
    return f"{metric.title.lower()} between {_text(low)} and {_text(high)} {metric.unit}"
